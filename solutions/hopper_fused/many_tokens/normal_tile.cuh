// normal_tile: the main loop of a normal tile. wgmma's M is the rows: a warpgroup has 64 rows and all 256 weight rows,
// as two n128, one after the other. While one warpgroup scales and adds, the other's wgmmas run.
#pragma once
#include "barrier.cuh"
#include "many_tokens.cuh"
#include "pipeline.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int kNormalN = 128;
constexpr int kNormalSums = 2 * kMmaM * kNormalN / kWarpgroupThreads;  // per thread: [8 weight rows][2 rows][2 columns]

// Of one K step: a thread's two rows' scales times those of two weight blocks.
struct NormalScales {
  float of[2][2];  // [weight block][row]
};

// One m64n128 over a K step, in one or two terms. Both terms have one scale, hence one accumulator.
template <int kHSplit, class Smem>
__device__ __forceinline__ void normal_issue(Smem& s, int stage, float (&raw)[kNormalSums / 2], int half,
                                             int warpgroup) {
  warpgroup_arrive();
#pragma unroll
  for (int term = 0; term < kHSplit; term++)
    mma_k_step<kNormalN>(raw, make_smem_desc(s.rows[stage][term] + warpgroup * kMmaM * kBlockK, kAtomBytes),
                         make_smem_desc(s.w[stage] + half * kNormalN * kBlockK, kAtomBytes), term == 0);
  warpgroup_commit_batch();
}
__device__ __forceinline__ void normal_wait(float (&raw)[kNormalSums / 2]) {
  warpgroup_wait<0>();
  warpgroup_fence_operand(raw);
}

// All K steps. read(k, stage) returns a step's scales; block(j) says which of the two weight blocks weight rows 8 j to
// 8 j + 7 are in. kFence: rows arrive by cp.async, which is not in the async proxy.
// Where the K steps are a multiple of the stages, the stage is a compile-time constant, so that no step waits for
// address arithmetic. A step's scales are read while the previous step's last results are added; the first step's while
// its own wgmmas run, as a tile's weight scales come from global memory.
template <int kHSplit, int kSteps, bool kFence, class Smem, class Read, class Block>
__device__ __forceinline__ void normal_mainloop(
    Smem& s, PipelineState<Smem::kStages>& pipe, float (&acc)[kNormalSums], int warpgroup, Read read, Block block) {
  constexpr int kSums = kNormalSums / 2, kAtOnce = kHSplit == 1 && kSteps % Smem::kStages == 0 ? Smem::kStages : 1;
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
  if constexpr (kFence) fence_proxy_async_shared();
  NormalScales now, next;
  for (int first = 0; first < kSteps; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      if (kAtOnce > 1) pipe.stage = i;
      const int stage = pipe.stage;
      normal_issue<kHSplit>(s, stage, raw, 0, warpgroup);
      if (i == 0 && first == 0) now = read(0, stage);
      normal_wait(raw);
      add(0, now);
      normal_issue<kHSplit>(s, stage, raw, 1, warpgroup);
      normal_wait(raw);
      cluster_consumer_release(s, stage);
      pipe.advance();
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
