// many_gemm2_wide: a tile of up to 128 rows by 256 output columns.
#pragma once
#include "many_wide.cuh"
#include "many_y.cuh"

template <int kTerms>
__device__ __forceinline__ void product2_wide(
    Smem2<kTerms>& s, Ring<Smem2<kTerms>::kStages>& ring, float (&acc)[kWideSums], const float* w_scale,
    int warpgroup) {
  const int row = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  const float scales = __ldg(w_scale + threadIdx.x % 32 % (2 * kK2));  // of two weight blocks, one a K step, spread over the lanes
  const auto read = [&](int k, int slot) {
    const float h0 = s.scales[slot][row], h1 = s.scales[slot][row + 8];
    const float low = __shfl_sync(0xffffffffu, scales, k), high = __shfl_sync(0xffffffffu, scales, kK2 + k);
    return WideScales{{{h0 * low, h1 * low}, {h0 * high, h1 * high}}};
  };
  wide_product<kTerms, kK2, false>(s, ring, acc, warpgroup, read, [](int j) { return j / 16; });
}

// y: of the tile's first row and column.
template <int kTerms>
__device__ __forceinline__ void gemm2_wide(
    Smem2<kTerms>& s, Ring<Smem2<kTerms>::kStages>& ring, const Item& item, const float* w_scale, uint16_t* y,
    int y_columns, int warpgroup) {
  float acc[kWideSums];
  product2_wide<kTerms>(s, ring, acc, w_scale, warpgroup);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int here = item.n - warpgroup * 64;  // rows of this warpgroup, if there are as many
  uint8_t* staged = s.staged[warpgroup];     // [2 times 64 columns][64 rows][128]
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float* sum = acc + 64 * half;
    bar_sync(kBarGroup + warpgroup, kWarpgroup);
#pragma unroll
    for (int j = 0; j < 16; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = staged + j / 8 * 64 * kBlock + (2 * warp + lane / 8 % 2) * kTile8 +
                          swizzled(lane % 8, (j % 8 + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pair_bf16(sum[4 * j], sum[4 * j + 1])),
                   "r"(pair_bf16(sum[4 * j + 2], sum[4 * j + 3])),
                   "r"(pair_bf16(sum[4 * j + 4], sum[4 * j + 5])),
                   "r"(pair_bf16(sum[4 * j + 6], sum[4 * j + 7]))
                   : "memory");
    }
    bar_sync(kBarGroup + warpgroup, kWarpgroup);
#pragma unroll
    for (int c = 0; c < 2; c++)
      store_rows<64>(staged + c * 64 * kBlock, y + (size_t)warpgroup * 64 * y_columns + half * 128 + c * 64, y_columns, here);
  }
}
