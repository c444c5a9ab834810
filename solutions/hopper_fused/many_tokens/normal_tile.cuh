// many_wide: the product of a wide tile, in which the rows are wgmma's M: a warpgroup has 64 rows and all 256 weight rows,
// two n128 in turn. One warpgroup's products run while the other scales and adds.
#pragma once
#include "many_tokens.cuh"

constexpr int kNormalSums = 128;  // of a thread: [n of 8 weight rows][2 rows][2 columns]

// Of a K step: of a thread's two rows times two weight blocks'.
struct NormalScales {
  float of[2][2];
};

// One m64 by n128 over a K step in one or two terms, which have one scale, hence one accumulator.
template <int kTerms, class Smem>
__device__ __forceinline__ void normal_issue(Smem& s, int stage, float (&raw)[kNormalSums / 2], int half, int warpgroup) {
  warpgroup_arrive();
#pragma unroll
  for (int term = 0; term < kTerms; term++)
    mma_k_step<128>(raw, make_smem_desc(s.rows[stage][term] + warpgroup * 64 * kBlockK, kAtomBytes),
                      make_smem_desc(s.w[stage] + half * 128 * kBlockK, kAtomBytes), term == 0);
  warpgroup_commit_batch();
}
__device__ __forceinline__ void normal_wait(float (&raw)[kNormalSums / 2]) {
  warpgroup_wait<0>();
  warpgroup_fence_operand(raw);
}

// All K steps. read(k, slot) gives a step's scales, and block(j) says which of the two weight blocks weight rows 8 j to
// 8 j + 7 are in. Where the steps fill the ring a whole number of times the slots are known to the compiler, and no step
// waits for the arithmetic of addresses. A step's scales are read while the last products of the one before are added, the first
// ones' while the first products run: a tile's weight scales come from far.
template <int kTerms, int kSteps, bool kFence, class Smem, class Read, class Block>
__device__ __forceinline__ void normal_mainloop(
    Smem& s, PipelineState<Smem::kStages>& pipe, float (&acc)[kNormalSums], int warpgroup, Read read, Block block) {
  constexpr int kSums = kNormalSums / 2, kAtOnce = kTerms == 1 && kSteps % Smem::kStages == 0 ? Smem::kStages : 1;
  float raw[kSums];
  const auto add = [&](int half, const NormalScales& scales) {
#pragma unroll
    for (int i = 0; i < kSums; i++) {
      const int sum = half * kSums + i;
      acc[sum] += raw[i] * scales.of[block(sum / 4)][i / 2 % 2];
    }
  };
#pragma unroll
  for (int i = 0; i < kNormalSums; i++) acc[i] = 0.0f;
  mbar_wait(&s.full[pipe.stage], pipe.phase);
  if constexpr (kFence) fence_proxy_async_shared();  // rows came by ordinary copies
  NormalScales now, next;
  for (int first = 0; first < kSteps; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (kAtOnce > 1) pipe.stage = i;
      const int stage = pipe.stage;
      normal_issue<kTerms>(s, stage, raw, 0, warpgroup);
      if (i == 0 && first == 0) now = read(0, stage);
      normal_wait(raw);
      add(0, now);
      normal_issue<kTerms>(s, stage, raw, 1, warpgroup);
      normal_wait(raw);
      cluster_consumer_release(s, stage);
      pipe.next();
      if (i + 1 < kAtOnce || first + kAtOnce < kSteps) {
        mbar_wait(&s.full[pipe.stage], pipe.phase);
        if constexpr (kFence) fence_proxy_async_shared();
        next = read(first + i + 1, pipe.stage);
      }
      add(1, now);
      now = next;
    }
  }
}
