// gemm1_swiglu_quant: G = W13 . x^T for a tile of slices, h = silu(gate) * up, h in two FP8 terms.
//
// All tiles are swap-AB: wgmma's M is 64 weight rows, its N the chunk's rows rounded up to 8, 16, 32 or 64. TMA
// interleaves eight rows of W13's first half with eight of the second; interface.cuh says which is up. So a thread that
// holds a row of up in one half of its accumulator rows holds the same column's gate in the other, and SwiGLU stays in
// registers.
#pragma once
#include "arguments.cuh"
#include "barrier.cuh"
#include "counter.cuh"
#include "numerics.cuh"
#include "pipeline.cuh"
#include "slice_scheduler.cuh"
#include "weight_scales.cuh"
#include "wgmma.cuh"

// Every consumer thread arrives for its own reads. One lane for its warp is no faster, and it would rely on a
// __syncwarp() that the compiler drops where it knows the warp to be converged, which racecheck reports as a hazard.
__device__ __forceinline__ void consumer_release(FusedSmem& s, int stage) { mbar_arrive(&s.empty[stage]); }

// For steps that only the other warpgroup uses: waits for each, so that the phases stay in step.
__device__ __forceinline__ void skip_stages(FusedSmem& s, PipelineState<kFusedStages>& pipe, int steps) {
  for (int i = 0; i < steps; i++, pipe.advance()) {
    mbar_wait(&s.full[pipe.stage], pipe.phase);
    consumer_release(s, pipe.stage);
  }
}

// Adds a K step's result to the fp32 sums, times the scales of this thread's rows and of both halves' weight blocks.
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

// The sum over K, two stages at a time: the second's wgmmas run while the first's result is scaled and added.
// `half` (0 or 1): which half of the stage's weights is this warpgroup's; with split_k also which K step.
// A step's row scales are read before its wgmmas are waited for: they arrive meanwhile, before the stage is released.
template <int N, bool kBypass>
__device__ __forceinline__ void gemm1(
    FusedSmem& s, const FusedArgs& args, const SliceTile& tile, PipelineState<kFusedStages>& pipe, float (&acc)[N / 2],
    int half, bool split_k) {
  const int block = (tile.chunk.expert * 2 * kIntermediate + tile.slice * kSliceColumns) / kBlockK, atoms = tile.chunk.atoms();
  const WeightScales w_first(args.w1_scale + block * kNumKBlocks1);
  const WeightScales w_second(args.w1_scale + (block + kIntermediate / kBlockK) * kNumKBlocks1);
  const float* bypass_scale =
      s.gemm1_only().x_scale + x_scale_index(0, s.token[tile.chunk.first_row], args.num_tokens);
  float raw[2][N / 2];
  float2 x_scale[2][N / 8];
  const int halves = split_k ? 2 : 1, my_k = split_k ? half : 0, steps = kNumKBlocks1 / halves;
  auto issue = [&](int stage, int phase, int k, float (&r)[N / 2]) {
    mbar_wait(&s.full[stage], phase);
    const uint64_t desc_a = make_smem_desc(s.stage(stage) + half * kSliceBytes, kAtomBytes);
    const uint64_t desc_b =
        kBypass ? make_smem_desc_row(s.bypass_row(tile.nth) + k * kBlockK)
                : make_smem_desc(s.stage(stage) + kStageWeightBytes + my_k * atoms * kAtomBytes, kAtomBytes);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < kMmasPerStep; i++) Wgmma<N>::mma(r, desc_a + kDescMmaK * i, desc_b + kDescMmaK * i, i > 0);
    warpgroup_commit_batch();
  };
  auto read_scales = [&](int stage, int k, float2 (&x)[N / 8]) {
    const float* scales = s.scales[stage] + my_k * atoms * kAtomRows + 2 * (threadIdx.x % kQuad);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = kBypass  // only column 0 of N is a row
                 ? make_float2(bypass_scale[k * x_scale_stride(args.num_tokens)], 0.0f)
                 : *reinterpret_cast<const float2*>(scales + j * kAtomRows);
  };
  for (int i = 0; i < steps; i += 2) {
    const int first = pipe.stage, k = i * halves + my_k, next_k = k + halves;
    issue(first, pipe.phase, k, raw[0]);
    pipe.advance();
    issue(pipe.stage, pipe.phase, next_k, raw[1]);
    read_scales(first, k, x_scale[0]);
    read_scales(pipe.stage, next_k, x_scale[1]);
    warpgroup_wait<1>();
    warpgroup_fence_operand(raw[0]);
    promote_halves<N>(acc, raw[0], x_scale[0], w_first.of(k), w_second.of(k));
    consumer_release(s, first);
    warpgroup_wait<0>();
    warpgroup_fence_operand(raw[1]);
    promote_halves<N>(acc, raw[1], x_scale[1], w_first.of(next_k), w_second.of(next_k));
    consumer_release(s, pipe.stage);
    pipe.advance();
  }
}

__device__ __forceinline__ float routing_weight(FusedSmem& s, const FusedArgs& args, int row, int token, int expert) {
  if constexpr (kTopKGiven) return s.gemm1_only().row_weight[row];
  else if (args.num_tokens <= kRouteAllTokens) return s.gemm1_only().weight[token][expert];
  else return __ldcg(&args.scratch->weight[token][expert]);
}

// SwiGLU, quantisation and the store of h. The stored scale includes the routing weight. Of each atom of 8 rows a
// thread has rows 2 (lane % kQuad) and the next, of one column of the slice; transpose4 gives it four columns of one
// row and term.
template <int N>
__device__ __forceinline__ void swiglu_quant(
    FusedSmem& s, const FusedArgs& args, const SliceTile& tile, const float (&acc)[N / 2], int warpgroup) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int slice = tile.slice + (tile.width == 2 ? warpgroup : 0);
  float(*amax)[kChunkRows] = s.amax[warpgroup];
  float h[N / 4];
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      h[2 * j + p] = swiglu_of_halves(acc[4 * j + p], acc[4 * j + 2 + p]);
      float m = fabsf(h[2 * j + p]);
#pragma unroll
      for (int d = kQuad; d < kWarp; d *= 2)
        m = fmaxf(m, __shfl_xor_sync(kFullWarp, m, d));  // over the lanes with this row
      if (lane < kQuad) amax[warp][8 * j + 2 * lane + p] = m;
    }
  }
  named_barrier_sync(kBarWarpgroup0 + warpgroup, kWarpgroupThreads);
  // after transpose4
  const int column = slice * kSliceColumns + 8 * warp + lane / 16 * 4;
  const int row = 2 * (lane % kQuad) + lane / kQuad % 2, term = lane / 8 % 2;
  uint8_t* to =
      args.scratch->h + tile.chunk.h_at(column / kBlockK) + term * kAtomBytes + swizzle_128b(row, column % kBlockK);
  float* scale_to = args.scratch->h_scale + tile.chunk.h_scale_at(column / kBlockK) + slice % kSlicesPerStep;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    if (j >= tile.chunk.atoms()) break;
    float v[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % kQuad) + p;
      const float scale = row_scale(fmaxf(fmaxf(amax[0][r], amax[1][r]), fmaxf(amax[2][r], amax[3][r])));
      v[p] = h[2 * j + p] * rcp_approx(scale);
      if (warp == 0 && lane < kQuad) {
        const int row = tile.chunk.first_row + r, t = s.token[row];
        const float weight = t == kNoToken ? 0.0f : routing_weight(s, args, row, t, tile.chunk.expert);
        scale_to[kSlicesPerStep * r] = scale * weight;
      }
    }
    uint16_t q[2];
    quantize_fp8<2>(q, v[0], v[1]);
    *reinterpret_cast<uint32_t*>(to + j * 2 * kAtomBytes) = transpose4(q[0] | (uint32_t)q[1] << 16);
  }
  // also keeps the next tile from overwriting amax
  named_barrier_sync_unaligned(kBarSliceStored0 + warpgroup, kWarpgroupThreads + kWarp);
}

// For one warp beside each warpgroup: signals every stored slice to the other CTAs. The barrier orders the warpgroup's
// stores before the release; a reader by bulk copy has a proxy fence between its acquire and the copy. The
// release takes a round trip to L2, during which the warpgroup already computes its next tile.
__device__ __forceinline__ void signal_slices(const FusedSmem& s, const FusedArgs& args, int warpgroup) {
  SliceTile tile;
  for (SliceScheduler tiles(s); tiles.take(tile);) {
    if (warpgroup == 1 && tile.width == 1) continue;
    named_barrier_sync_unaligned(kBarSliceStored0 + warpgroup, kWarpgroupThreads + kWarp);
    if (threadIdx.x % kWarp == 0) counter_arrive(&args.scratch->slices_stored[tile.chunk_index]);
  }
}

template <int N, bool kBypass>
__device__ __forceinline__ void gemm1_tile(
    FusedSmem& s, const FusedArgs& args, const SliceTile& tile, PipelineState<kFusedStages>& pipe, int& split_k_rounds,
    int warpgroup) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  if (!tile.split_k()) {
    if (tile.width == 1 && warpgroup == 1) return skip_stages(s, pipe, kNumKBlocks1);
    gemm1<N, kBypass>(s, args, tile, pipe, acc, warpgroup, false);
    swiglu_quant<N>(s, args, tile, acc, warpgroup);
    return;
  }
  gemm1<N, kBypass>(s, args, tile, pipe, acc, warpgroup, true);
  // Each warpgroup has the sums of half of K. Warpgroup 1 passes its own to warpgroup 0, four values of a thread at a
  // time, as shared memory has no room for more.
  const int thread = threadIdx.x % kWarpgroupThreads;
  constexpr int kPieces = N / 2 / 4;
#pragma unroll
  for (int piece = 0; piece < kPieces; piece++, split_k_rounds++) {
    if (warpgroup == 1) {
      if (split_k_rounds > 0) mbar_wait(&s.split_k_empty, (split_k_rounds - 1) % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) s.split_k_sums[i][thread] = acc[4 * piece + i];
      mbar_arrive(&s.split_k_full);
    } else {
      mbar_wait(&s.split_k_full, split_k_rounds % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) acc[4 * piece + i] += s.split_k_sums[i][thread];
      mbar_arrive(&s.split_k_empty);
    }
  }
  if (warpgroup == 0) swiglu_quant<N>(s, args, tile, acc, 0);
}

__device__ __forceinline__ void gemm1_swiglu_quant(
    FusedSmem& s, const FusedArgs& args, PipelineState<kFusedStages>& pipe, int warpgroup) {
  SliceTile tile;
  int split_k_rounds = 0;  // uses of split_k_sums in all tiles so far
  for (SliceScheduler tiles(s); tiles.take(tile);) {
    const int rows = tile.chunk.rows;
    if (tile.chunk.bypasses_gather(args.num_tokens))
      gemm1_tile<8, true>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else if (rows <= 8) gemm1_tile<8, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else if (rows <= 16) gemm1_tile<16, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else if (rows <= 32) gemm1_tile<32, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else gemm1_tile<64, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
  }
}
