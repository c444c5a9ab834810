// epilogue: where the results of both GEMMs go: h and its scales, the counters that gemm2 waits for, y.
#pragma once
#include "counter.cuh"
#include "many_tokens.cuh"
#include "numerics.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

using Gemm1Smem = GemmSmem<1>;  // x has one term
template <int kHSplit>
using Gemm2Smem = GemmSmem<kHSplit>;

// Named barriers. "Warpgroup": this id is warpgroup 0's, the next one warpgroup 1's.
enum Gemm1Barrier { kBarGemm1Consumers = 1, kBarGemm1Warpgroup };
enum Gemm2Barrier { kBarGemm2Warpgroup = 1 };

// ---- h ----

// From a row's largest absolute value: stores the scale, times the routing weight, and returns the scale's inverse.
__device__ __forceinline__ float store_scale(float* h_scale, float amax, float weight) {
  const float scale = row_scale(amax);
  *h_scale = scale * weight;
  return rcp_approx(scale);
}

// For a warpgroup: signals that the h that it has stored so far is in memory. gemm2 has a proxy fence before it reads.
__device__ __forceinline__ void signal_h_stored(unsigned* counter) {
  if (threadIdx.x % kWarpgroupThreads != 0) return;
  bulk_wait();
  counter_arrive(counter);
}

// Where a tile's h begins: rows of 128 columns, swizzled.
template <int kHSplit>
__device__ __forceinline__ uint8_t* h_tile(const ManyArgs& args, const WorkTile& tile, int first_row, int rows,
                                           int term) {
  return args.h + (size_t)first_row * kIntermediate * kHSplit + (size_t)(tile.column * kHSplit + term) * rows * kBlockK +
         tile.first * kBlockK;
}

// ---- y ----

// A token with several rows on this rank sums their y: with two terms of h, rounding each to bf16 would be most of the
// error. So y is scaled fp16 then, with a scale for each row and 128 columns.
template <int kHSplit>
__device__ __forceinline__ unsigned pack_y(float low, float high) {
  return kHSplit == 2 ? pack_fp16(low, high) : pack_bf16(low, high);
}
// Most that a K step's sum of E4M3 products can be, with scales of one.
constexpr float kStepBound = 448.0f * 448.0f * kBlockK;

// For a warpgroup: copies 128 bytes of each of `count` rows from shared memory, where they lie in swizzled atoms, to y,
// which has `columns` columns.
template <int kRows>
__device__ __forceinline__ void store_rows(const uint8_t* staged, uint16_t* y, int columns, int count) {
  const int thread = threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int i = 0; i < kRows / 16; i++) {
    const int row = 16 * i + thread / 8, piece = thread % 8;
    if (row >= count) break;
    *reinterpret_cast<uint4*>(y + (size_t)row * columns + piece * 8) = *reinterpret_cast<const uint4*>(
        staged + row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, piece * 16));
  }
}
