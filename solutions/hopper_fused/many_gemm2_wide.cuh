// many_gemm2_wide: a tile of up to 128 rows. Rows are M: a warpgroup has 64 rows and all 256 output columns, two n128 in
// turn; one's products run while the other scales, adds or stores.
#pragma once
#include "many_y.cuh"

constexpr int kWideN = 128;

// Both terms have one scale, hence one accumulator.
template <int kTerms>
__device__ __forceinline__ void product2_wide(
    Smem2<kTerms>& s, ManyRing<Smem2<kTerms>::kStages>& ring, float (&acc)[2][kWideN / 2], const float* w_scale,
    int warpgroup) {
  const int row = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  float raw[kWideN / 2], now[2] = {__ldg(w_scale), __ldg(w_scale + kK2)};
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int i = 0; i < kWideN / 2; i++) acc[half][i] = 0.0f;
  for (int k = 0; k < kK2; k++, ring.next()) {
    const int slot = ring.slot, next = k + 1 < kK2 ? k + 1 : k;
    const float coming[2] = {__ldg(w_scale + next), __ldg(w_scale + kK2 + next)};
    mbar_wait(&s.full[slot], ring.phase);
    const float h0 = s.scales[slot][row], h1 = s.scales[slot][row + 8];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float scale0 = h0 * now[half], scale1 = h1 * now[half];
      wgmma_begin();
#pragma unroll
      for (int term = 0; term < kTerms; term++)
        product_step<kWideN>(raw, wgmma_operand(s.rows[slot][term] + warpgroup * 64 * kBlock, kTile8),
                             wgmma_operand(s.w[slot] + half * kWideN * kBlock, kTile8), term == 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(raw);
      if (half == 1) let_go_many(s, slot);
#pragma unroll
      for (int j = 0; j < kWideN / 8; j++) {
        acc[half][4 * j + 0] += raw[4 * j + 0] * scale0;
        acc[half][4 * j + 1] += raw[4 * j + 1] * scale0;
        acc[half][4 * j + 2] += raw[4 * j + 2] * scale1;
        acc[half][4 * j + 3] += raw[4 * j + 3] * scale1;
      }
    }
    now[0] = coming[0];
    now[1] = coming[1];
  }
}

// y: of the tile's first row and column.
template <int kTerms>
__device__ __forceinline__ void gemm2_wide(
    Smem2<kTerms>& s, ManyRing<Smem2<kTerms>::kStages>& ring, const Item& item, const float* w_scale, uint16_t* y,
    int y_columns, int warpgroup) {
  float acc[2][kWideN / 2];
  product2_wide<kTerms>(s, ring, acc, w_scale, warpgroup);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int here = item.n - warpgroup * 64;  // rows of this warpgroup, if there are as many
  uint8_t* staged = s.staged[warpgroup];     // [2 times 64 columns][64 rows][128]
#pragma unroll
  for (int half = 0; half < 2; half++) {
    bar_sync(kBarGroup + warpgroup, kWarpgroup);
#pragma unroll
    for (int j = 0; j < kWideN / 8; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = staged + j / 8 * 64 * kBlock + (2 * warp + lane / 8 % 2) * kTile8 +
                          swizzled(lane % 8, (j % 8 + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pair_bf16(acc[half][4 * j], acc[half][4 * j + 1])),
                   "r"(pair_bf16(acc[half][4 * j + 2], acc[half][4 * j + 3])),
                   "r"(pair_bf16(acc[half][4 * j + 4], acc[half][4 * j + 5])),
                   "r"(pair_bf16(acc[half][4 * j + 6], acc[half][4 * j + 7]))
                   : "memory");
    }
    bar_sync(kBarGroup + warpgroup, kWarpgroup);
#pragma unroll
    for (int c = 0; c < 2; c++)
      store_rows<64>(staged + c * 64 * kBlock, y + (size_t)warpgroup * 64 * y_columns + half * 128 + c * 64, y_columns, here);
  }
}
