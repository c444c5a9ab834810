// normal_mainloop: the main loop of a normal tile, for both GEMMs. wgmma's M is the rows: a warpgroup has 64 rows and
// all 256 weight rows, in two halves with N = 128, one after the other. While one warpgroup scales and adds, the
// other's wgmmas can run. Nothing makes the warpgroups take turns; barriers that did were no faster.
#pragma once
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

constexpr int kNormalN = 128;
constexpr int kNormalAccum = kMmaM * kNormalN / kWarpgroupThreads;  // [n8 of n128][row, row + 8][2 weight rows]
constexpr int kNormalSums = 2 * kNormalAccum;

// What a thread multiplies its results of one K block with: the scales of its two rows times those of the two blocks of
// 128 weight rows.
struct NormalScales {
  float of[2][2];  // [weight block][row]
};

// Issues one wgmma m64n128 over a K block. The parts of A (hi and lo) have the same scale, hence the same accumulator.
// half: which half of the tile's weight rows.
template <int kParts, class Smem>
__device__ __forceinline__ void normal_issue(Smem& smem, int stage, float (&accum)[kNormalAccum], int half,
                                             int warpgroup) {
  warpgroup_arrive();
#pragma unroll
  for (int part = 0; part < kParts; part++)
    mma_k_block<kNormalN>(accum, make_smem_desc(smem.a[stage][part] + warpgroup * kMmaM * kBlockK, kAtomBytes),
                          make_smem_desc(smem.w[stage] + half * kNormalN * kBlockK, kAtomBytes), part == 0);
  warpgroup_commit_batch();
}
__device__ __forceinline__ void normal_wait(float (&accum)[kNormalAccum]) {
  warpgroup_wait<0>();
  warpgroup_fence_operand(accum);
}

// All K blocks: sum += accum * scales, K block by K block.
//   read(k, stage)    returns a K block's scales
//   weight_block(j)   says which of the two weight blocks weight rows 8 j to 8 j + 7 are in
//   kFence            A arrives by cp.async, which is not in the async proxy
//
// Where A has one part and the number of K blocks is a multiple of that of stages, the loop is unrolled over the
// stages: the stage is a compile-time constant, and nothing waits for address arithmetic.
//
// A K block's scales are read while the previous one's last results are added, but the first one's while its own wgmmas
// run, as gemm2's weight scales come from global memory. The release of a stage does not name the scales as what was
// read (barrier.cuh), which would take 1 to 2%. It need not: add(0, ...) has used them all, before the second product
// overwrote accum.
template <int kParts, int kNumKBlocks, bool kFence, class Smem, class Read, class WeightBlock>
__device__ __forceinline__ void normal_mainloop(Smem& smem, typename Smem::Pipeline& pipe, float (&sum)[kNormalSums],
                                                int warpgroup, Read read, WeightBlock weight_block) {
  constexpr int kUnroll = kParts == 1 && kNumKBlocks % Smem::kStages == 0 ? Smem::kStages : 1;
  float accum[kNormalAccum];
  const auto add = [&](int half, const NormalScales& scales) {
#pragma unroll
    for (int i = 0; i < kNormalAccum; i++) {
      const int at = half * kNormalAccum + i;
      sum[at] += accum[i] * scales.of[weight_block(at / 4)][i / 2 % 2];
    }
  };
#pragma unroll
  for (int i = 0; i < kNormalSums; i++) sum[i] = 0.0f;

  smem.full[pipe.stage].wait(pipe.phase);
  if constexpr (kFence) fence_proxy_async_shared();
  NormalScales now, next;
  for (int first = 0; first < kNumKBlocks; first += kUnroll) {
#pragma unroll
    for (int i = 0; i < kUnroll; i++) {
      if (kUnroll > 1) pipe.stage = i;
      const int stage = pipe.stage;

      // the first half of the weight rows
      normal_issue<kParts>(smem, stage, accum, 0, warpgroup);
      if (i == 0 && first == 0) now = read(0, stage);
      normal_wait(accum);
      add(0, now);

      // the second half; its results are added when the next K block's scales have been asked for
      normal_issue<kParts>(smem, stage, accum, 1, warpgroup);
      normal_wait(accum);
      cluster_consumer_release(smem, stage);
      pipe.advance();
      if (i + 1 < kUnroll || first + kUnroll < kNumKBlocks) {
        smem.full[pipe.stage].wait(pipe.phase);
        if constexpr (kFence) fence_proxy_async_shared();
        next = read(first + i + 1, pipe.stage);
      }
      add(1, now);
      now = next;
    }
  }
}

}  // namespace hopper_fused
