// gemm1_swiglu_quant: G = W13 . x^T for a tile, h = silu(gate) * up, and h in two FP8 terms.
//
// A unit is 64 weight rows, eight of up and eight of gate in turn, so a thread that holds a row of up in the
// accumulator's first half holds the same column's gate in its second, and SwiGLU stays in registers.
#pragma once
#include "fused_layer.cuh"
#include "ptx.cuh"
#include "swiglu_quant.cuh"
#include "weight_scales.cuh"

// The consumer's part in freeing a slot: each thread for what it has read itself. One lane for its warp is no faster, and
// rests on a __syncwarp() that the compiler leaves out where it knows the warp to be together, so that racecheck objects.
__device__ __forceinline__ void consumer_release(FusedSmem& s, int stage) { mbar_arrive(&s.empty[stage]); }

// Steps that are the other warpgroup's alone: waiting keeps the phases in step.
__device__ __forceinline__ void skip_stages(FusedSmem& s, PipelineState<kFusedStages>& pipe, int steps) {
  for (int i = 0; i < steps; i++, pipe.next()) {
    mbar_wait(&s.full[pipe.stage], pipe.phase);
    consumer_release(s, pipe.stage);
  }
}

// Adds one K step's product, scaled with the scales of this thread's rows and those of up's and gate's weight block.
template <int N>
__device__ __forceinline__ void promote_up_gate(
    float (&acc)[N / 2], const float (&raw)[N / 2], const float2 (&x)[N / 8], float up, float gate) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    acc[4 * j + 0] += raw[4 * j + 0] * (x[j].x * up);
    acc[4 * j + 1] += raw[4 * j + 1] * (x[j].y * up);
    acc[4 * j + 2] += raw[4 * j + 2] * (x[j].x * gate);
    acc[4 * j + 3] += raw[4 * j + 3] * (x[j].y * gate);
  }
}

// Sum over K, two slots at a time: the second's product runs while the first's is scaled and added.
// `half` (0 or 1) is the weight block of the slot that is this warpgroup's; with `split` it is also its K step.
// The rows' scales of a step are read before its product is waited for: they are there when it is, and long before the
// slot is let go.
template <int N, bool kBypass>
__device__ __forceinline__ void gemm1(
    FusedSmem& s, const FusedArgs& args, const SliceTile& tile, PipelineState<kFusedStages>& pipe, float (&acc)[N / 2], int half, bool split_k) {
  const int block = (tile.chunk.expert * 2 * kInter + tile.slice * kSliceColumns) / kBlockK, groups = tile.chunk.groups();
  const WeightScales up(args.w1_scale + block * kKSteps1), gate(args.w1_scale + (block + kInter / kBlockK) * kKSteps1);
  const float* bypass_scale = s.routing().x_scale + s.token[tile.chunk.first_row];
  float raw[2][N / 2];
  float2 x_scale[2][N / 8];
  const int halves = split_k ? 2 : 1, my_k = split_k ? half : 0, steps = kKSteps1 / halves;
  auto issue = [&](int stage, int phase, int k, float (&r)[N / 2]) {
    mbar_wait(&s.full[stage], phase);
    const uint64_t a = make_smem_desc(s.stage(stage) + half * kSliceBytes, kAtomBytes);
    const uint64_t b = kBypass ? make_smem_desc_row(s.bypass_row(tile.turn) + k * kBlockK)
                               : make_smem_desc(s.stage(stage) + kStageWeightBytes + my_k * groups * kAtomBytes, kAtomBytes);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 4; i++) Wgmma<N>::mma(r, a + 2 * i, b + 2 * i, i > 0);
    warpgroup_commit_batch();
  };
  auto read_scales = [&](int stage, int k, float2 (&x)[N / 8]) {
    const float* scales = s.scales[stage] + my_k * groups * kAtomRows + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = kBypass ? make_float2(bypass_scale[k * args.num_tokens], 0.0f)  // of the one row, which the first lanes have
                     : *reinterpret_cast<const float2*>(scales + j * kAtomRows);
  };
  for (int i = 0; i < steps; i += 2) {
    const int first = pipe.stage, k = i * halves + my_k, next_k = k + halves;
    issue(first, pipe.phase, k, raw[0]);
    pipe.next();
    issue(pipe.stage, pipe.phase, next_k, raw[1]);
    read_scales(first, k, x_scale[0]);
    read_scales(pipe.stage, next_k, x_scale[1]);
    warpgroup_wait<1>();
    warpgroup_fence_operand(raw[0]);
    promote_up_gate<N>(acc, raw[0], x_scale[0], up.of(k), gate.of(k));
    consumer_release(s, first);
    warpgroup_wait<0>();
    warpgroup_fence_operand(raw[1]);
    promote_up_gate<N>(acc, raw[1], x_scale[1], up.of(next_k), gate.of(next_k));
    consumer_release(s, pipe.stage);
    pipe.next();
  }
}

// SwiGLU, quantisation and the store of h; the scale carries the routing weight on. A thread has rows 2 (lane % 4) and
// the next of each group of 8, of one column of the unit; then four columns of one row and term.
template <int N>
__device__ __forceinline__ void swiglu_quant(
    FusedSmem& s, const FusedArgs& args, const SliceTile& tile, const float (&acc)[N / 2], int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int slice = tile.slice + (tile.width == 2 ? warpgroup : 0);
  float(*most)[kChunkRows] = s.amax[warpgroup];
  float h[N / 4];
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      h[2 * j + p] = swiglu(acc[4 * j + p], acc[4 * j + 2 + p]);
      float m = fabsf(h[2 * j + p]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
      if (lane < 4) most[warp][8 * j + 2 * lane + p] = m;
    }
  }
  named_barrier_sync(kBarWarpgroup0 + warpgroup, kWarpgroupThreads);
  const bool all_route = args.num_tokens <= kRouteAllTokens;
  const int column = slice * kSliceColumns + 8 * warp + lane / 16 * 4, row = 2 * (lane % 4) + lane / 4 % 2, term = lane / 8 % 2;
  uint8_t* to = args.scratch->h + tile.chunk.h_tile(column / kBlockK) + term * kAtomBytes + swizzle_128b(row, column % kBlockK);
  float* scale_to = args.scratch->h_scale + tile.chunk.h_scale_at(column / kBlockK) + slice % 4;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    if (j >= tile.chunk.groups()) break;
    float v[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % 4) + p;
      const float scale = row_scale(fmaxf(fmaxf(most[0][r], most[1][r]), fmaxf(most[2][r], most[3][r])));
      v[p] = h[2 * j + p] * rcp_approx(scale);
      if (warp == 0 && lane < 4) {
        const int t = s.token[tile.chunk.first_row + r], e = tile.chunk.expert;
        const float weight = t == kNoToken ? 0.0f : all_route ? s.routing().weight[t][e] : __ldcg(&args.scratch->weight[t][e]);
        scale_to[4 * r] = scale * weight;
      }
    }
    uint16_t q[2];
    quantize_fp8<2>(q, v[0], v[1]);
    *reinterpret_cast<uint32_t*>(to + j * 2 * kAtomBytes) = transpose4(q[0] | (uint32_t)q[1] << 16);
  }
  named_barrier_sync_unaligned(kBarSliceStored0 + warpgroup, kWarpgroupThreads + 32);  // which also keeps the next tile from `most`
}

// For one warp beside each warpgroup: tells the other blocks of each unit of h that is stored. The barrier puts the
// warpgroup's writes before the release; whoever reads them by bulk copy fences between its acquire and the copy. The
// release takes a trip to L2, in which the warpgroup is at its next tile.
__device__ __forceinline__ void signal_slices(const FusedSmem& s, const FusedArgs& args, int warpgroup) {
  SliceTile tile;
  for (SliceScheduler tiles(s); tiles.take(tile);) {
    if (warpgroup == 1 && tile.width == 1) continue;
    named_barrier_sync_unaligned(kBarSliceStored0 + warpgroup, kWarpgroupThreads + 32);
    if (threadIdx.x % 32 == 0) counter_arrive(&args.scratch->slices_stored[tile.number]);
  }
}

template <int N, bool kBypass>
__device__ __forceinline__ void gemm1_tile(
    FusedSmem& s, const FusedArgs& args, const SliceTile& tile, PipelineState<kFusedStages>& pipe, int& split_k_rounds, int warpgroup) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  if (!tile.split_k()) {
    if (tile.width == 1 && warpgroup == 1) return skip_stages(s, pipe, kKSteps1);
    gemm1<N, kBypass>(s, args, tile, pipe, acc, warpgroup, false);
    swiglu_quant<N>(s, args, tile, acc, warpgroup);
    return;
  }
  gemm1<N, kBypass>(s, args, tile, pipe, acc, warpgroup, true);
  // each warpgroup has half of K: the second hands its sums over, four values at a time for want of room
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

__device__ __forceinline__ void gemm1_swiglu_quant(FusedSmem& s, const FusedArgs& args, PipelineState<kFusedStages>& pipe, int warpgroup) {
  SliceTile tile;
  int split_k_rounds = 0;  // from the second warpgroup to the first, in all tiles so far
  for (SliceScheduler tiles(s); tiles.take(tile);) {
    const int rows = tile.chunk.rows;
    if (tile.chunk.bypasses_gather(args.num_tokens)) gemm1_tile<8, true>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else if (rows <= 8) gemm1_tile<8, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else if (rows <= 16) gemm1_tile<16, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else if (rows <= 32) gemm1_tile<32, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
    else gemm1_tile<64, false>(s, args, tile, pipe, split_k_rounds, warpgroup);
  }
}
