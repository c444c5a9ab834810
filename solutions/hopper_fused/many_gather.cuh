// many_gather: moves the rows of each expert together, in the layout that wgmma reads.
#pragma once
#include "many_layer.cuh"

// Where the experts' rows are: the first, and how many there are with those that fill up.
struct Places {
  int first[kLocal], rows[kLocal];
};

// For one warp: token t's x, or zeros without a token, to the rows of the experts in `experts`; lane e knows expert e's.
__device__ __forceinline__ void gather_token(const ManyArgs& a, const Places& places, int t, unsigned experts, int row) {
  const int lane = threadIdx.x % 32;
  constexpr int kPieces = kHidden / 16 / 32, kAtOnce = 7;  // 16 bytes each
  const uint4* from = reinterpret_cast<const uint4*>(a.x + (size_t)max(t, 0) * kHidden) + lane;
  float scale[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    scale[i] = t >= 0 && 32 * i + lane < kK1 ? __ldg(a.x_scale + (size_t)(32 * i + lane) * a.num_tokens + t) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; i += kAtOnce) {
    uint4 piece[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) piece[j] = t >= 0 ? __ldg(from + 32 * (i + j)) : make_uint4(0, 0, 0, 0);
    for (unsigned left = experts; left; left &= left - 1) {
      const int e = __ffs(left) - 1, first = places.first[e], rows = places.rows[e];
      const int r = __shfl_sync(0xffffffffu, row, e) - first;
      uint8_t* to = a.gathered_x + (size_t)first * kHidden + r * kBlock + ((lane % 8 ^ r % 8) * 16);
#pragma unroll
      for (int j = 0; j < kAtOnce; j++)
        *reinterpret_cast<uint4*>(to + (size_t)(4 * (i + j) + lane / 8) * rows * kBlock) = piece[j];
      if (i == 0) {
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (32 * k + lane < kK1) a.gathered_scale[(size_t)first * kK1 + (32 * k + lane) * rows + r] = scale[k];
      }
    }
  }
}

// For one warp: zeros to the output of a token without rows.
__device__ __forceinline__ void clear_token(const ManyArgs& a, int t) {
  uint4* to = reinterpret_cast<uint4*>(a.output + (size_t)t * kHidden);
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < kHidden / 8; i += 32) to[i] = make_uint4(0, 0, 0, 0);
}
