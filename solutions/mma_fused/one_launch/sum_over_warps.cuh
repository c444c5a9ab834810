// sum_over_warps: the warps of a CTA have sums over different K of the same 64 weight rows; warps 0 to 3 add them up,
// in order of warp, for one tile of 16 weight rows each.
#pragma once
#include "fused_layer.cuh"

// For all threads. A lane of warp m < 4 receives the values of its place in tile m; other warps nothing of meaning, and
// may go on.
__device__ __forceinline__ float4 sum_over_warps(Smem& s, const float (&acc)[kMTiles][4], int warp, int lane) {
  __syncthreads();  // the parts before are read
#pragma unroll
  for (int m = 0; m < kMTiles; m++) s.parts[warp][m][lane] = make_float4(acc[m][0], acc[m][1], acc[m][2], acc[m][3]);
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
  if (warp < kMTiles) {
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      const float4 part = s.parts[w][warp][lane];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
  }
  return sum;
}
static_assert(kMTiles <= kWarps, "a warp for each tile of weight rows");
