// gemm1_swiglu_quant: the consumers' gemm1. G^T = W13 . x^T for this CTA's tiles, h = silu(gate) * up, h as hi + lo in
// FP8 with one scale per row and n_block.
//
//   mainloop   K block by K block, four wgmmas to `raw`, which is added to fp32 sums times the scales of its rows and
//              of its weight block. Of each two K blocks the second's wgmmas run while the first is added
//   split K    of a single n_block with few rows each warpgroup has half of the K blocks; warpgroup 1's sums go to
//              warpgroup 0 through shared memory
//   epilogue   SwiGLU, row maxima over the n_block's columns, quantisation, h and its scales to scratch
//
// TMA interleaves eight rows of W13's first half with eight of the second; interface.cuh says which is up. So of 16
// accumulator rows the first 8 are up (or gate) and the other 8 the same columns' gate (or up): a thread has both, and
// SwiGLU stays in registers.
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/gemms/consumer_pipeline.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/few_tokens/mxfp4/mxfp4_mainloops.cuh"
#include "hopper_fused/few_tokens/gemms/n_block_scheduler.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// ---- mainloop ----

// Where a tile's rows of x are: in its stages, in a bypass row, or the one that this CTA has quantised.
enum class Rows { kStaged, kBypass, kQuantised };

// The scales of one block of 128 weight rows, one per K block, spread over a warp's lanes. All are read when a tile
// begins: read K block by K block they would arrive from DRAM just in time, and sometimes late.
struct WeightScales {
  float low, high;  // of K blocks lane and 32 + lane
  __device__ explicit WeightScales(const float* scales)
      : low((int)threadIdx.x % kWarp < kNumKBlocks1 ? scales[threadIdx.x % kWarp] : 0.0f),
        high((int)threadIdx.x % kWarp < kNumKBlocks1 - kWarp ? scales[kWarp + threadIdx.x % kWarp] : 0.0f) {}
  // For a whole warp.
  __device__ float of(int k) const { return __shfl_sync(kFullWarp, k < kWarp ? low : high, k % kWarp); }
};

// acc += raw times the scales of this thread's rows of x and of W13's first and second half.
template <int N>
__device__ __forceinline__ void promote_halves(
    float (&acc)[N / 2], const float (&raw)[N / 2], const float2 (&x)[N / 8], float first, float second) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    acc[4 * j + 0] += raw[4 * j + 0] * (x[j].x * first);
    acc[4 * j + 1] += raw[4 * j + 1] * (x[j].y * first);
    acc[4 * j + 2] += raw[4 * j + 2] * (x[j].x * second);
    acc[4 * j + 3] += raw[4 * j + 3] * (x[j].y * second);
  }
}

// Whether an n_block lies beyond I, with MXFP4 only: its weights are zeros, and so are h and its scales.
__device__ __forceinline__ bool is_padding(int n_block) {
  return Config::kPaddedIntermediate > kIntermediate && n_block >= kIntermediate / Config::kNBlockColumns;
}

// Sums over K for this warpgroup's weight tile of each stage: its own n_block, or with split_k its own K block of one
// n_block. Two stages at a time. The scales of x are read while the wgmmas run, and before the stage is released.
template <int N, Rows kRows>
__device__ __forceinline__ void gemm1_mainloop(FusedSmem& s, const FusedArgs& args, const Gemm1Tile& tile,
                                               PipelineState<Config::kStages>& pipe, float (&acc)[N / 2], int warpgroup,
                                               bool split_k) {
  const int n_block = is_padding(tile.n_block) ? 0 : tile.n_block;
  const int block = (tile.m_block.expert * 2 * kIntermediate + n_block * Config::kNBlockColumns) / kBlockK;
  const int atoms = tile.m_block.atoms();
  const WeightScales w_first(args.w1_scale + block * kNumKBlocks1);
  const WeightScales w_second(args.w1_scale + (block + kIntermediate / kBlockK) * kNumKBlocks1);
  const int token = s.token[tile.m_block.first_row];
  const uint8_t* row = kRows == Rows::kQuantised ? s.quantised_row(token) : s.bypass_row(tile.nth);
  const float* row_scale = s.gemm1_smem().x_scale() + x_scale_index(0, token, args.num_tokens);
  float raw[2][N / 2];
  float2 x_scale[2][N / 8];
  const int stage_k = split_k ? 2 : 1, my_k = split_k ? warpgroup : 0;  // K blocks of a stage; this warpgroup's
  auto issue = [&](int stage, int phase, int k, float (&r)[N / 2]) {
    s.full[stage].wait(phase);
    const uint64_t desc_a = make_smem_desc(s.stage(stage) + warpgroup * Config::kWeightTileBytes, kAtomBytes);
    const uint64_t desc_b =
        kRows != Rows::kStaged
            ? make_smem_desc_row(row + k * kBlockK)
            : make_smem_desc(s.stage(stage) + Config::kStageWeightBytes + my_k * atoms * kAtomBytes, kAtomBytes);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < kMmasPerStep; i++) Wgmma<N>::mma(r, desc_a + kDescMmaK * i, desc_b + kDescMmaK * i, i > 0);
    warpgroup_commit_batch();
  };
  auto read_scales = [&](int stage, int k, float2 (&x)[N / 8]) {
    const float* scales = s.scales[stage] + my_k * atoms * kAtomRows + 2 * (threadIdx.x % kQuad);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = kRows != Rows::kStaged  // column 0 of N; 1 to 7 are no rows
                 ? make_float2(row_scale[k * x_scale_stride(args.num_tokens)], 0.0f)
                 : *reinterpret_cast<const float2*>(scales + j * kAtomRows);
  };
  for (int i = 0; i < Config::kKBlocks1 / stage_k; i += 2) {
    const int first = pipe.stage, k = tile.k_block(i * stage_k) + my_k, next_k = tile.k_block((i + 1) * stage_k) + my_k;
    issue(first, pipe.phase, k, raw[0]);
    pipe.advance();
    issue(pipe.stage, pipe.phase, next_k, raw[1]);
    read_scales(first, k, x_scale[0]);
    read_scales(pipe.stage, next_k, x_scale[1]);
    warpgroup_wait<1>();
    warpgroup_fence_operand(raw[0]);
    consumer_release(s, first, x_scale);
    promote_halves<N>(acc, raw[0], x_scale[0], w_first.of(k), w_second.of(k));
    warpgroup_wait<0>();
    warpgroup_fence_operand(raw[1]);
    consumer_release(s, pipe.stage, x_scale);
    promote_halves<N>(acc, raw[1], x_scale[1], w_first.of(next_k), w_second.of(next_k));
    pipe.advance();
  }
}

// Adds warpgroup 1's sums to warpgroup 0's, four values of a thread at a time, as shared memory has no room for more.
// rounds: uses of split_k_sums so far.
template <int N>
__device__ __forceinline__ void reduce_split_k(FusedSmem& s, float (&acc)[N / 2], int& rounds, int warpgroup) {
  const int thread = threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int j = 0; j < N / 8; j++, rounds++) {
    if (warpgroup == 1) {
      if (rounds > 0) s.split_k_empty.wait((rounds - 1) % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) s.split_k_sums[i][thread] = acc[4 * j + i];
      s.split_k_full.arrive();
    } else {
      s.split_k_full.wait(rounds % 2);
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; i++) sums[i] = s.split_k_sums[i][thread];
#pragma unroll
      for (int i = 0; i < 4; i++) acc[4 * j + i] += sums[i];
      s.split_k_empty.release(sums);
    }
  }
}

// ---- epilogue ----

__device__ __forceinline__ float routing_weight(FusedSmem& s, const FusedArgs& args, int row, int token, int expert) {
  if constexpr (kTopKGiven) return s.gemm1_smem().row_weight()[row];
  else if (args.num_tokens <= Config::kRouteAllTokens) return s.gemm1_smem().token_weight(token)[expert];
  else return __ldcg(&args.scratch->weight[token][expert]);
}

// SwiGLU, quantisation and the store of h for this warpgroup's n_block. The stored scale includes the routing weight.
// Of each atom of 8 rows a lane has column lane / 4 of rows r = 2 (lane % 4) and r + 1: bytes hi r, hi r + 1, lo r,
// lo r + 1. After transpose4 it has byte lane / 4 % 4 of the four columns from lane / 16 * 4 on: one 4-byte store.
template <int N>
__device__ __forceinline__ void swiglu_quant(
    FusedSmem& s, const FusedArgs& args, const Gemm1Tile& tile, const float (&acc)[N / 2], int warpgroup) {
  const MBlock& m_block = tile.m_block;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int n_block = tile.n_block + (tile.num_n_blocks == 2 ? warpgroup : 0);
  float (*amax)[Config::kMBlockRows] = s.amax[warpgroup];
  float h[N / 4];
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      h[2 * j + p] = is_padding(n_block) ? 0.0f : swiglu_of_halves(acc[4 * j + p], acc[4 * j + 2 + p]);
      float m = fabsf(h[2 * j + p]);
#pragma unroll
      for (int d = kQuad; d < kWarp; d *= 2)
        m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, d));  // over the lanes with this row
      if (lane < kQuad) amax[warp][8 * j + 2 * lane + p] = m;
    }
  }
  WarpgroupBarrier::sync(warpgroup);
  // where the four bytes of this lane go after transpose4
  // (with MXFP4 weights in the order that they want: even columns first)
  const int column =
      n_block * Config::kNBlockColumns + (kMxfp4Weights ? 4 * warp + lane / 16 * 16 : 8 * warp + lane / 16 * 4);
  const int row_in_atom = 2 * (lane % kQuad) + lane / kQuad % 2, part = lane / 8 % 2;
  uint8_t* to = args.scratch->h + m_block.h_offset(column / kBlockK) + part * kAtomBytes +
                swizzle_128b(row_in_atom, column % kBlockK);
  float* scale_to =
      args.scratch->h_scale + m_block.h_scale_offset(column / kBlockK) + n_block % Config::kNBlocksPerKBlock;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    if (j >= m_block.atoms()) break;
    float v[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % kQuad) + p;
      const float scale = row_scale(fmaxf(fmaxf(amax[0][r], amax[1][r]), fmaxf(amax[2][r], amax[3][r])));
      v[p] = h[2 * j + p] * rcp_approx(scale);
      if (warp == 0 && lane < kQuad) {
        const int row = m_block.first_row + r, t = s.token[row];
        const bool none = t == kNoToken || is_padding(n_block);
        const float weight = none ? 0.0f : routing_weight(s, args, row, t, m_block.expert);
        scale_to[Config::kNBlocksPerKBlock * r] = scale * (weight * Config::kWeightFactor);
      }
    }
    uint16_t q[2];
    quantise_fp8<2>(q, v[0], v[1]);
    *reinterpret_cast<uint32_t*>(to + j * 2 * kAtomBytes) = transpose4(q[0] | (uint32_t)q[1] << 16);
  }
  // h is stored, and amax may be overwritten; see signal_stored_h
  HStoredBarrier::sync_unaligned(warpgroup);
}

// ---- work tiles ----

// The scales of MXFP4 weights, tile by tile: a scheduler of its own is a tile ahead.
struct Gemm1Weights {
  const FusedArgs& args;
  int warpgroup;
  NBlockScheduler ahead;
  Gemm1Tile next;
  W1ScaleReader scales;

  __device__ __forceinline__ Gemm1Weights(const FusedSmem& s, const FusedArgs& args, int warpgroup)
      : args(args), warpgroup(warpgroup), ahead(s) {
    if (!kMxfp4Weights) return;
    if (ahead.get_next_tile(next)) scales.begin(scale_rows_of(args, next, warpgroup));
  }
  // At the beginning of each tile. Behind the last one its own scales are read once more.
  __device__ __forceinline__ void next_tile() {
    if (!kMxfp4Weights) return;
    ahead.get_next_tile(next);
    scales.next_tile(scale_rows_of(args, next, warpgroup));
  }
  __device__ __forceinline__ void skip_tile() {
    if (kMxfp4Weights) scales.skip_tile();
  }
};

template <int N, Rows kRows>
__device__ __forceinline__ void gemm1_tile(FusedSmem& s, const FusedArgs& args, const Gemm1Tile& tile,
                                           PipelineState<Config::kStages>& pipe, Gemm1Weights& weights,
                                           int& split_k_rounds, int warpgroup) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  const auto mainloop = [&](bool split_k) {
    if constexpr (kMxfp4Weights) gemm1_mainloop_mxfp4<N>(s, tile, pipe, acc, warpgroup, weights.scales);
    else gemm1_mainloop<N, kRows>(s, args, tile, pipe, acc, warpgroup, split_k);
  };
  if (!tile.split_k()) {
    if (tile.num_n_blocks == 1 && warpgroup == 1) {
      weights.skip_tile();
      return skip_stages(s, pipe, Config::kKSteps1);
    }
    mainloop(false);
    swiglu_quant<N>(s, args, tile, acc, warpgroup);
    return;
  }
  mainloop(true);
  reduce_split_k<N>(s, acc, split_k_rounds, warpgroup);
  if (warpgroup == 0) swiglu_quant<N>(s, args, tile, acc, 0);
}

template <bool kBf16>
__device__ __forceinline__ void gemm1_swiglu_quant(FusedSmem& s, const FusedArgs& args,
                                                   PipelineState<Config::kStages>& pipe, int warpgroup) {
  constexpr Rows kOne = kBf16 ? Rows::kQuantised : Rows::kBypass;
  Gemm1Tile tile;
  int split_k_rounds = 0;
  Gemm1Weights weights(s, args, warpgroup);
  for (NBlockScheduler scheduler(s); scheduler.get_next_tile(tile);) {
    weights.next_tile();
    const int rows = tile.m_block.rows;
    if (Config::kBypasses && tile.m_block.bypasses_gather(args.num_tokens))
      gemm1_tile<8, kOne>(s, args, tile, pipe, weights, split_k_rounds, warpgroup);
    else if (rows <= 8) gemm1_tile<8, Rows::kStaged>(s, args, tile, pipe, weights, split_k_rounds, warpgroup);
    else if (rows <= 16) gemm1_tile<16, Rows::kStaged>(s, args, tile, pipe, weights, split_k_rounds, warpgroup);
    else if (rows <= 32) gemm1_tile<32, Rows::kStaged>(s, args, tile, pipe, weights, split_k_rounds, warpgroup);
    else if constexpr (Config::kMBlockRows == 64)
      gemm1_tile<64, Rows::kStaged>(s, args, tile, pipe, weights, split_k_rounds, warpgroup);
  }
}

}  // namespace hopper_fused
