// many_gather: moves the rows of each expert together, in the layout that wgmma reads, in order of expert, so that the
// first products start while later rows are still on their way. Then clears the output of tokens without rows.
#pragma once
#include "many_layer.cuh"

// A warp a row; `warp` counts the warps of all blocks that do this.
__device__ __forceinline__ void gather_many(const Work& work, const ManyArgs& a, int warp, int warps) {
  const int lane = threadIdx.x % 32;
  constexpr int kPieces = kHidden / 16 / 32, kAtOnce = 7;  // 16 bytes each
  int expert = 0;
  for (int row = warp; row < work.first_row[kLocal]; row += warps) {
    while (row >= work.first_row[expert + 1]) expert++;
    const int t = __ldg(a.token_of + row), first = work.first_row[expert], rows = work.rows[expert], r = row - first;
    const uint4* from = reinterpret_cast<const uint4*>(a.x + (size_t)max(t, 0) * kHidden) + lane;
    uint8_t* to = a.gathered_x + (size_t)first * kHidden + r * kBlock + ((lane % 8 ^ r % 8) * 16);
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      scale[i] = t >= 0 && 32 * i + lane < kK1 ? __ldg(a.x_scale + (size_t)(32 * i + lane) * a.num_tokens + t) : 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; i += kAtOnce) {
      uint4 piece[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) piece[j] = t >= 0 ? __ldg(from + 32 * (i + j)) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int j = 0; j < kAtOnce; j++)
        *reinterpret_cast<uint4*>(to + (size_t)(4 * (i + j) + lane / 8) * rows * kBlock) = piece[j];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (32 * i + lane < kK1) a.gathered_scale[(size_t)first * kK1 + (32 * i + lane) * rows + r] = scale[i];
    __threadfence();
    fence_async_global();  // the copy engine reads these rows
    __syncwarp();
    if (lane == 0) arrive_gpu(&a.counters->gathered[expert]);
  }
}

__device__ __forceinline__ void clear_unrouted(const ManyArgs& a, int warp, int warps) {
  const int lane = threadIdx.x % 32;
  for (int t = warp; t < a.num_tokens; t += warps) {
    if (__ldg(a.mask + t)) continue;
    uint4* to = reinterpret_cast<uint4*>(a.output + (size_t)t * kHidden);
#pragma unroll 4
    for (int i = lane; i < kHidden / 8; i += 32) to[i] = make_uint4(0, 0, 0, 0);
  }
}
