// many_wide: the product of a wide tile, in which the rows are wgmma's M: a warpgroup has 64 rows and all 256 weight rows,
// two n128 in turn. One warpgroup's products run while the other scales and adds.
#pragma once
#include "many_layer.cuh"

constexpr int kWideSums = 128;  // of a thread: [n of 8 weight rows][2 rows][2 columns]

// Of a K step: of a thread's two rows times two weight blocks'.
struct WideScales {
  float of[2][2];
};

// One m64 by n128 over a K step in one or two terms, which have one scale, hence one accumulator.
template <int kTerms, class Smem>
__device__ __forceinline__ void wide_issue(Smem& s, int slot, float (&raw)[kWideSums / 2], int half, int warpgroup) {
  wgmma_begin();
#pragma unroll
  for (int term = 0; term < kTerms; term++)
    product_step<128>(raw, wgmma_operand(s.rows[slot][term] + warpgroup * 64 * kBlock, kTile8),
                      wgmma_operand(s.w[slot] + half * 128 * kBlock, kTile8), term == 0);
  wgmma_commit();
}
__device__ __forceinline__ void wide_wait(float (&raw)[kWideSums / 2]) {
  wgmma_wait<0>();
  pin(raw);
}

// All K steps. read(k, slot) gives a step's scales, and block(j) says which of the two weight blocks weight rows 8 j to
// 8 j + 7 are in. Where the steps fill the ring a whole number of times the slots are known to the compiler, and no step
// waits for the arithmetic of addresses. A step's scales are read while the last products of the one before are added, the first
// ones' while the first products run: a tile's weight scales come from far.
template <int kTerms, int kSteps, bool kFence, class Smem, class Read, class Block>
__device__ __forceinline__ void wide_product(
    Smem& s, Ring<Smem::kStages>& ring, float (&acc)[kWideSums], int warpgroup, Read read, Block block) {
  constexpr int kSums = kWideSums / 2, kAtOnce = kTerms == 1 && kSteps % Smem::kStages == 0 ? Smem::kStages : 1;
  float raw[kSums];
  const auto add = [&](int half, const WideScales& scales) {
#pragma unroll
    for (int i = 0; i < kSums; i++) {
      const int sum = half * kSums + i;
      acc[sum] += raw[i] * scales.of[block(sum / 4)][i / 2 % 2];
    }
  };
#pragma unroll
  for (int i = 0; i < kWideSums; i++) acc[i] = 0.0f;
  mbar_wait(&s.full[ring.slot], ring.phase);
  if constexpr (kFence) fence_async_shared();  // rows came by ordinary copies
  WideScales now, next;
  for (int first = 0; first < kSteps; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (kAtOnce > 1) ring.slot = i;
      const int slot = ring.slot;
      wide_issue<kTerms>(s, slot, raw, 0, warpgroup);
      if (i == 0 && first == 0) now = read(0, slot);
      wide_wait(raw);
      add(0, now);
      wide_issue<kTerms>(s, slot, raw, 1, warpgroup);
      wide_wait(raw);
      let_go_many(s, slot);
      ring.next();
      if (i + 1 < kAtOnce || first + kAtOnce < kSteps) {
        mbar_wait(&s.full[ring.slot], ring.phase);
        if constexpr (kFence) fence_async_shared();
        next = read(first + i + 1, ring.slot);
      }
      add(1, now);
      now = next;
    }
  }
}
