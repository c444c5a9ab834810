// many_y: what the two forms of gemm2 share: K steps in one or two terms, and the way of a tile's result into y.
#pragma once
#include <cuda_bf16.h>

#include "many_tokens.cuh"

template <int kTerms>
using Gemm2Smem = GemmSmem<kTerms>;
enum { kBarGroup = 1 };  // and the next, for the second warpgroup

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// 128 bytes of each of `count` rows of y, which has so many columns, from shared memory, where their 16-byte pieces are
// swizzled by the row's number. For a warpgroup.
template <int kRows>
__device__ __forceinline__ void store_rows(const uint8_t* staged, uint16_t* y, int columns, int count) {
  const int thread = threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int i = 0; i < kRows / 16; i++) {
    const int row = 16 * i + thread / 8, piece = thread % 8;
    if (row >= count) break;
    *reinterpret_cast<uint4*>(y + (size_t)row * columns + piece * 8) =
        *reinterpret_cast<const uint4*>(staged + row / 8 * kAtomBytes + swizzle_128b(row % 8, piece * 16));
  }
}
