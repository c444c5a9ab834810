// gemm2_epilogue: how the epilogues of both kinds of tile pack y and store it, and their named barriers.
#pragma once
#include <cstdint>

#include "grouped_gemm.cuh"
#include "numerics.cuh"
#include "wgmma.cuh"

template <int kHSplit>
using Gemm2Smem = GemmSmem<kHSplit>;

// kBarGemm2Warpgroup is warpgroup 0's, the next id warpgroup 1's.
enum Gemm2Barrier { kBarGemm2Warpgroup = 1 };

// A token with several rows on this rank sums their y: with h in hi and lo, rounding each to bf16 would be most of the
// error. So y is scaled fp16 then, with a scale for each row and 128 columns.
template <int kHSplit>
__device__ __forceinline__ unsigned pack_y(float low, float high) {
  return kHSplit == 2 ? pack_fp16(low, high) : pack_bf16(low, high);
}
// The most that a K block's sum of E4M3 products can be, with scales of one.
constexpr float kKBlockBound = 448.0f * 448.0f * kBlockK;

// For a warpgroup: copies 128 bytes of each of `rows` rows from shared memory, where they lie in swizzled atoms, to y,
// which has `columns` columns.
template <int kMaxRows>
__device__ __forceinline__ void store_rows(const uint8_t* smem_d, uint16_t* y, int columns, int rows) {
  const int thread = threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int i = 0; i < kMaxRows / 16; i++) {
    const int row = 16 * i + thread / 8, vector = thread % 8;
    if (row >= rows) break;
    *reinterpret_cast<uint4*>(y + (size_t)row * columns + vector * 8) = *reinterpret_cast<const uint4*>(
        smem_d + row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, vector * 16));
  }
}
