// sum_over_warps: adds up, through shared memory, the sums that the CTA's warps have over different K blocks, always in
// the order of the warps. The first four of them receive the sums, for 16 weight rows each.
#pragma once
#include "mma_fused/one_launch/fused_layer.cuh"

namespace mma_fused {

// For all threads; every kGroupWarps warps have sums of their own. acc: of 8 rows. A lane of a group's warp m < 4
// receives what it has itself in acc[m], summed; other warps receive nothing of meaning, and may go on. Its barriers
// also lie between two uses of amax and of the named barriers.
template <int kGroupWarps>
__device__ __forceinline__ float4 sum_over_warps(Smem& s, const float (&acc)[Config::kMTiles][4], int warp, int lane) {
  __syncthreads();  // the sums before are read
#pragma unroll
  for (int m = 0; m < Config::kMTiles; m++)
    s.warp_sums[warp][m][lane] = make_float4(acc[m][0], acc[m][1], acc[m][2], acc[m][3]);
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
  const int first = kGroupWarps == Config::kWarps ? 0 : warp / kGroupWarps * kGroupWarps, m = warp - first;
  if (m < Config::kMTiles) {
#pragma unroll
    for (int w = 0; w < kGroupWarps; w++) {
      const float4 part = s.warp_sums[first + w][m][lane];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
  }
  return sum;
}

}  // namespace mma_fused
