// many_wide: one K step of a wide tile, in which the rows are wgmma's M: a warpgroup has 64 rows and all 256 weight rows,
// two n128 in turn. One warpgroup's products run while the other scales and adds.
#pragma once
#include "many_layer.cuh"

constexpr int kWideSums = 128;  // of a thread: [n of 8 weight rows][2 rows][2 columns]

// scale(j, r): of weight rows 8 j .. 8 j + 7 and row lane / 4 + 8 r, from registers. Lets the slot go. Two terms have one
// scale, hence one accumulator.
template <int kTerms, class Smem, class Scale>
__device__ __forceinline__ void wide_step(Smem& s, int slot, float (&acc)[kWideSums], int warpgroup, Scale scale) {
  constexpr int kSums = kWideSums / 2;
  float raw[kSums];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    wgmma_begin();
#pragma unroll
    for (int term = 0; term < kTerms; term++)
      product_step<128>(raw, wgmma_operand(s.rows[slot][term] + warpgroup * 64 * kBlock, kTile8),
                        wgmma_operand(s.w[slot] + half * 128 * kBlock, kTile8), term == 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(raw);
    if (half == 1) let_go_many(s, slot);
#pragma unroll
    for (int i = 0; i < kSums; i++) acc[half * kSums + i] += raw[i] * scale((half * kSums + i) / 4, i / 2 % 2);
  }
}
