// mxfp4_mainloops: gemm1's and gemm2's sums over K where the weights are MXFP4.
//
// A stage is a step of two K blocks. While the wgmmas of a K block run, the weights of the next one are converted; its
// bytes are read before the wgmmas are issued where they lie in the same stage. Of each K block the four groups' sums
// are kept apart and added to fp32 sums times their scales.
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/gemms/consumer_pipeline.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/few_tokens/mxfp4/mxfp4_weights.cuh"
#include "hopper_fused/few_tokens/gemms/n_block_scheduler.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// raw: of each group of a K block, times x, whose atoms are `stride` bytes apart; with kLow its second part, which comes
// an atom after the first.
template <int N, bool kLow>
__device__ __forceinline__ void issue_k_block(
    float (&raw)[kGroups][N / 2], Converted& a, const uint8_t* x, int stride) {
  const uint64_t desc = make_smem_desc(x, stride);
  fence_operands<N>(a, raw);
  warpgroup_arrive();
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    WgmmaRegisters<N>::mma(raw[j], a[j], desc + kDescMmaK * j, 0);
    if (kLow) WgmmaRegisters<N>::mma(raw[j], a[j], desc + kDescMmaK * j + (kAtomBytes >> 4), 1);
  }
  warpgroup_commit_batch();
}
template <int N>
__device__ __forceinline__ void wait_k_block(float (&raw)[kGroups][N / 2]) {
  warpgroup_wait<0>();
#pragma unroll
  for (int j = 0; j < kGroups; j++) warpgroup_fence_operand(raw[j]);
}

// ---- gemm1 ----

// Waits for the K block's wgmmas and adds them to acc. x_scales: of the K block, by row. Returns the bits of what was
// read.
template <int N>
__device__ __forceinline__ uint32_t promote_gemm1(
    float (&acc)[N / 2], float (&raw)[kGroups][N / 2], const float* x_scales, uint32_t first, uint32_t second,
    bool unusual) {
  float w[2][kGroups];
  scales_of(w[0], first, unusual);
  scales_of(w[1], second, unusual);
  float2 x[N / 8];
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    x[j] = *reinterpret_cast<const float2*>(x_scales + kAtomRows * j + 2 * (threadIdx.x % kQuad));
    bits |= __float_as_uint(x[j].x) | __float_as_uint(x[j].y);
  }
  wait_k_block<N>(raw);
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    const float(&scale)[kGroups] = w[i / 2 % 2];
    float sum = raw[0][i] * scale[0];
#pragma unroll
    for (int j = 1; j < kGroups; j++) sum = fmaf(raw[j][i], scale[j], sum);
    acc[i] = fmaf(sum, i % 2 ? x[i / 4].y : x[i / 4].x, acc[i]);
  }
  return bits;
}

// As gemm1_mainloop: sums over K for this warpgroup's weight tile of each stage.
template <int N>
__device__ __forceinline__ void gemm1_mainloop_mxfp4(FusedSmem& s, const FusedArgs& args, const Gemm1Tile& tile,
                                                     PipelineState<Config::kStages>& pipe, float (&acc)[N / 2],
                                                     int warpgroup, bool split_k) {
  constexpr int kRowScales = kHidden / kGroupK;
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps, row = w13_row(threadIdx.x % kWarp / kQuad);
  const int my_n_block = tile.n_block + (tile.num_n_blocks == 2 ? warpgroup : 0);
  const bool padding = my_n_block >= kIntermediate / Config::kNBlockColumns;  // its weights are zeros
  const int w_row = (padding ? 0 : my_n_block) * Config::kNBlockColumns + 8 * warp + row;
  const uint8_t* first_scales =
      args.w1_bytes() + ((size_t)tile.m_block.expert * 2 * kIntermediate + w_row) * kRowScales;
  const uint8_t* second_scales = first_scales + (size_t)kIntermediate * kRowScales;
  const int stage_k = split_k ? 2 : 1, my_k = split_k ? warpgroup : 0;  // steps of a stage; this warpgroup's
  const int steps = Config::kKSteps1 / stage_k, atoms = tile.m_block.atoms();
  const TileOffsets offsets(warp, row);
  const uint32_t my_tile = warpgroup * Config::kWeightTileBytes;

  StepScales scales = load_scales<kRowScales>(first_scales, second_scales, my_k);
  Packed packed;
  Converted a[Config::kStepBlocks];
  float raw[kGroups][N / 2];
  s.full[pipe.stage].wait(pipe.phase);
  load_packed(packed, smem_addr(s.stage(pipe.stage)) + my_tile, offsets, 0);
  convert(a[0], packed);
  for (int i = 0; i < steps; i++) {
    const int stage = pipe.stage;
    const uint8_t* x = s.stage(stage) + Config::kStageWeightBytes + my_k * Config::kStepBlocks * atoms * kAtomBytes;
    const float* x_scales = s.scales[stage] + my_k * Config::kStepBlocks * atoms * kAtomRows;
    StepScales next = scales;
    if (i + 1 < steps) next = load_scales<kRowScales>(first_scales, second_scales, (i + 1) * stage_k + my_k);
    const bool unusual = any_unusual(scales);

    load_packed(packed, smem_addr(s.stage(stage)) + my_tile, offsets, 1);
    issue_k_block<N, false>(raw, a[0], x, kAtomBytes);
    convert(a[1], packed);
    uint32_t read = promote_gemm1<N>(acc, raw, x_scales, scales.row[0][0], scales.row[1][0], unusual);

    issue_k_block<N, false>(raw, a[1], x + atoms * kAtomBytes, kAtomBytes);
    pipe.advance();
    if (i + 1 < steps) {
      s.full[pipe.stage].wait(pipe.phase);
      load_packed(packed, smem_addr(s.stage(pipe.stage)) + my_tile, offsets, 0);
      convert(a[0], packed);
    }
    read |= promote_gemm1<N>(acc, raw, x_scales + atoms * kAtomRows, scales.row[0][1], scales.row[1][1], unusual);
    consumer_release(s, stage, read);
    scales = next;
  }
}

// ---- gemm2 ----

// As promote_gemm1; h_scales: of the K block, by row and n_block.
template <int N>
__device__ __forceinline__ uint32_t promote_gemm2(
    float (&acc)[N / 2], float (&raw)[kGroups][N / 2], const float* h_scales, uint32_t first, uint32_t second,
    bool unusual) {
  static_assert(kGroups == Config::kNBlocksPerKBlock, "a group of weights is an n_block of h");
  float w[2][kGroups];
  scales_of(w[0], first, unusual);
  scales_of(w[1], second, unusual);
  float4 h[N / 8][2];
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      h[j][p] = *reinterpret_cast<const float4*>(h_scales + Config::kNBlocksPerKBlock *
                                                                (kAtomRows * j + 2 * (threadIdx.x % kQuad) + p));
      bits |= __float_as_uint(h[j][p].x) | __float_as_uint(h[j][p].w);
    }
  }
  wait_k_block<N>(raw);
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    const float(&scale)[kGroups] = w[i / 2 % 2];
    const float4 rows = h[i / 4][i % 2];
    acc[i] = fmaf(raw[0][i], scale[0] * rows.x, acc[i]);
    acc[i] = fmaf(raw[1][i], scale[1] * rows.y, acc[i]);
    acc[i] = fmaf(raw[2][i], scale[2] * rows.z, acc[i]);
    acc[i] = fmaf(raw[3][i], scale[3] * rows.w, acc[i]);
  }
  return bits;
}

// As gemm2_mainloop: sums over this warpgroup's half of the steps.
template <int N>
__device__ __forceinline__ void gemm2_mainloop_mxfp4(FusedSmem& s, const FusedArgs& args,
                                                     PipelineState<Config::kStages>& pipe, float (&acc)[N / 2],
                                                     int warpgroup, const MBlock& m_block) {
  constexpr bool kSplitK = N <= Config::kGemm2SplitKRows;
  constexpr int kStageK = kSplitK ? 2 : 1;  // steps of a stage
  constexpr int kRowScales = kIntermediate / kGroupK, kSteps = Config::kKSteps2 / 2;
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps, row = threadIdx.x % kWarp / kQuad;
  const int atoms = m_block.atoms(), my_k = kSplitK ? warpgroup : 0;
  const int w_row = blockIdx.x % Config::kNumColumnTiles * Config::kColumnTile + kWarpRows * warp + row;
  const uint8_t* scales0 = args.w2_bytes() + ((size_t)m_block.expert * kHidden + w_row) * kRowScales;
  const uint8_t* scales1 = scales0 + kAtomRows * kRowScales;
  const TileOffsets offsets(warp, row);
  const uint32_t my_tile = my_k * Config::kWeightTileBytes;

  // Where the warpgroups take turns: passes over the other one's stage.
  const auto skip = [&] {
    s.full[pipe.stage].wait(pipe.phase);
    consumer_release(s, pipe.stage);
    pipe.advance();
  };

  StepScales scales = load_scales<kRowScales>(scales0, scales1, warpgroup);
  Packed packed;
  Converted a[Config::kStepBlocks];
  float raw[kGroups][N / 2];
  if (!kSplitK && warpgroup == 1) skip();
  s.full[pipe.stage].wait(pipe.phase);
  load_packed(packed, smem_addr(s.stage(pipe.stage)) + my_tile, offsets, 0);
  convert(a[0], packed);
  for (int i = 0; i < kSteps; i++) {
    const int stage = pipe.stage;
    const uint8_t* h =
        s.stage(stage) + kStageK * Config::kWeightTileBytes + my_k * Config::kStepBlocks * atoms * 2 * kAtomBytes;
    const float* h_scales =
        s.scales[stage] + my_k * Config::kStepBlocks * atoms * kAtomRows * Config::kNBlocksPerKBlock;
    StepScales next = scales;
    if (i + 1 < kSteps) next = load_scales<kRowScales>(scales0, scales1, 2 * (i + 1) + warpgroup);
    const bool unusual = any_unusual(scales);

    load_packed(packed, smem_addr(s.stage(stage)) + my_tile, offsets, 1);
    issue_k_block<N, true>(raw, a[0], h, 2 * kAtomBytes);
    convert(a[1], packed);
    uint32_t read = promote_gemm2<N>(acc, raw, h_scales, scales.row[0][0], scales.row[1][0], unusual);

    issue_k_block<N, true>(raw, a[1], h + atoms * 2 * kAtomBytes, 2 * kAtomBytes);
    pipe.advance();
    if (i + 1 < kSteps) {
      if (!kSplitK) skip();
      s.full[pipe.stage].wait(pipe.phase);
      load_packed(packed, smem_addr(s.stage(pipe.stage)) + my_tile, offsets, 0);
      convert(a[0], packed);
    }
    read |= promote_gemm2<N>(acc, raw, h_scales + atoms * kAtomRows * Config::kNBlocksPerKBlock, scales.row[0][1],
                             scales.row[1][1], unusual);
    consumer_release(s, stage, read);
    scales = next;
  }
  if (!kSplitK && warpgroup == 0) skip();
}

}  // namespace hopper_fused
