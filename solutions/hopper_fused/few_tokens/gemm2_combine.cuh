// gemm2_combine: Y = W2 . h^T. A CTA owns 64 output columns of all tokens and adds the experts' rows there, in order of
// expert, in fp32 in shared memory.
//
// No other CTA writes these columns (unless kChunkSplits > 1), so there is no combine pass, and the order of the sums
// is the same in every run. The warpgroups split K: within a stage, or stage by stage. Each adds its half to the sums
// when it is its turn.
#pragma once
#include "barrier.cuh"
#include "counter.cuh"
#include "gemm1_swiglu_quant.cuh"
#include "numerics.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

// Waits until at most `kPending` batches of wgmmas are in flight and adds the result of the one before them, which is
// that of one slice. Its scales are read first, as in gemm1.
template <int N, int kPending>
__device__ __forceinline__ void promote(float (&acc)[N / 2], float (&raw)[N / 2], const float* scales, float w) {
  constexpr int kSlice = kSlicesPerStep - 1 - kPending;
  const float* pair = scales + kSlicesPerStep * 2 * (threadIdx.x % kQuad) + kSlice;
  float2 h[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++)
    h[j] = make_float2(pair[kSlicesPerStep * kAtomRows * j], pair[kSlicesPerStep * kAtomRows * j + kSlicesPerStep]);
  warpgroup_wait<kPending>();
  warpgroup_fence_operand(raw);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const float s0 = h[j].x * w, s1 = h[j].y * w;
    acc[4 * j + 0] += raw[4 * j + 0] * s0;
    acc[4 * j + 1] += raw[4 * j + 1] * s1;
    acc[4 * j + 2] += raw[4 * j + 2] * s0;
    acc[4 * j + 3] += raw[4 * j + 3] * s1;
  }
}

// One K step of Y = W2 . (q(h) + q(h - q(h)))^T. Both terms have one scale, hence one accumulator. h has a scale for
// each slice of 32 columns, hence each slice has an accumulator, which is added while the next ones run.
template <int N>
__device__ __forceinline__ void gemm2_step(
    float (&acc)[N / 2], const uint8_t* w, const uint8_t* h, const float* scales, float w_scale) {
  static_assert(kSlicesPerStep == 4 && kSliceColumns == kMmaK,
                "a slice of h is one wgmma's K; the calls below are four");
  float raw[kSlicesPerStep][N / 2];
  const uint64_t desc_a = make_smem_desc(w, kAtomBytes);
  const uint64_t desc_high = make_smem_desc(h, 2 * kAtomBytes), desc_low = desc_high + (kAtomBytes >> 4);
  warpgroup_arrive();
#pragma unroll
  for (int slice = 0; slice < kSlicesPerStep; slice++) {
    Wgmma<N>::mma(raw[slice], desc_a + kDescMmaK * slice, desc_high + kDescMmaK * slice, 0);
    Wgmma<N>::mma(raw[slice], desc_a + kDescMmaK * slice, desc_low + kDescMmaK * slice, 1);
    warpgroup_commit_batch();
  }
  promote<N, 3>(acc, raw[0], scales, w_scale);
  promote<N, 2>(acc, raw[1], scales, w_scale);
  promote<N, 1>(acc, raw[2], scales, w_scale);
  promote<N, 0>(acc, raw[3], scales, w_scale);
}

// This warpgroup's half of K: its half of each stage, or every second stage. w_scales: of the weight blocks, one per K
// step, one in a lane.
template <int N>
__device__ __forceinline__ void gemm2(
    FusedSmem& s, PipelineState<kFusedStages>& pipe, float (&acc)[N / 2], int warpgroup, int atoms, float w_scales) {
  constexpr bool kSplitK = N <= kSplitKRows2;
  constexpr int kHalves = kSplitK ? 2 : 1;
  const int half = kSplitK ? warpgroup : 0;
  for (int i = 0; i < kNumKBlocks2 / kHalves; i++, pipe.advance()) {
    const int stage = pipe.stage;
    if (kSplitK || i % 2 == warpgroup) {
      const int k = kHalves * i + half;
      const float scale = __shfl_sync(kFullWarp, w_scales, k);
      mbar_wait(&s.full[stage], pipe.phase);
      gemm2_step<N>(acc, s.stage(stage) + half * kSliceBytes,
                    s.stage(stage) + kHalves * kSliceBytes + half * atoms * 2 * kAtomBytes,
                    s.scales[stage] + half * atoms * kSlicesPerStep * kAtomRows, scale);
    } else {
      mbar_wait(&s.full[stage], pipe.phase);
    }
    consumer_release(s, stage);
  }
}

// nth: of the chunk among those that this CTA adds.
template <int N>
__device__ __forceinline__ void gemm2_chunk(
    FusedSmem& s, const FusedArgs& args, PipelineState<kFusedStages>& pipe, const Chunk& chunk, float w_scales,
    int warpgroup, int nth) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  gemm2<N>(s, pipe, acc, warpgroup, chunk.atoms(), w_scales);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  float* column = s.sums(args.num_tokens) + kWarpRows * warp + lane / kQuad;
  // warpgroup 0, 1, 0, 1, ...: one at a time adds to the sums
  if (warpgroup == 1) mbar_wait(&s.sums_added[0], nth % 2);
  else if (nth > 0) mbar_wait(&s.sums_added[1], (nth - 1) % 2);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % kQuad) + p;
      if (r >= chunk.rows) continue;
      float* sum = column + s.token[chunk.first_row + r] * kSumPitch;
      sum[0] += acc[4 * j + p];
      sum[8] += acc[4 * j + 2 + p];
    }
  }
  mbar_arrive(&s.sums_added[warpgroup]);
}

// Where several CTAs share a column tile: each stores its sums; when all have, each adds up all of them for its share
// of the tokens, in order of CTA. It cannot deadlock: a CTA stores and arrives before it waits.
__device__ __forceinline__ void reduce_chunk_splits(const FusedArgs& args, const float* sums, int column_tile,
                                                    int split) {
  const int thread = threadIdx.x % kConsumerThreads;
  constexpr int kVectors = kColumnTile / 4, kOctets = kColumnTile / 8;
  FusedScratch& scratch = *args.scratch;
  for (int i = thread; i < args.num_tokens * kVectors; i += kConsumerThreads)
    __stcg(
        reinterpret_cast<float4*>(&scratch.partial[split][i / kVectors][column_tile * kColumnTile + i % kVectors * 4]),
        *reinterpret_cast<const float4*>(sums + i / kVectors * kSumPitch + i % kVectors * 4));
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  if (thread == 0) {
    counter_arrive(&scratch.sums_added[column_tile]);
    counter_wait(&scratch.sums_added[column_tile], kChunkSplits);
  }
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  const int first = args.num_tokens * split / kChunkSplits, end = args.num_tokens * (split + 1) / kChunkSplits;
  for (int i = first * kOctets + thread; i < end * kOctets; i += kConsumerThreads) {
    const int t = i / kOctets, column = column_tile * kColumnTile + i % kOctets * 8;
    float4 u = make_float4(0, 0, 0, 0), v = u;
#pragma unroll
    for (int p = 0; p < kChunkSplits; p++) {
      const float4* from = reinterpret_cast<const float4*>(&scratch.partial[p][t][column]);
      const float4 x = __ldcg(from), y = __ldcg(from + 1);
      u.x += x.x, u.y += x.y, u.z += x.z, u.w += x.w;
      v.x += y.x, v.y += y.y, v.z += y.z, v.w += y.w;
    }
    *reinterpret_cast<uint4*>(args.output + (size_t)t * kHidden + column) =
        make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w), pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  }
}

__device__ __forceinline__ void gemm2_combine(
    FusedSmem& s, const FusedArgs& args, PipelineState<kFusedStages>& pipe, int warpgroup) {
  const int thread = threadIdx.x % kConsumerThreads;
  constexpr int kVectors = kColumnTile / 4;
  float* sums = s.sums(args.num_tokens);
  const int column_tile = blockIdx.x % kColumnTiles, split = blockIdx.x / kColumnTiles;
  // One weight scale per K step and lane. A chunk's are requested while the chunk before is computed.
  const auto scales_of = [&](int n) {
    if (n >= s.num_chunks) return 0.0f;
    const int block = s.chunk[n].expert * (kHidden / kBlockK) + column_tile * kColumnTile / kBlockK;
    return __ldg(args.w2_scale + block * kNumKBlocks2 + thread % kWarp % kNumKBlocks2);
  };
  float next_scales = scales_of(split);
  named_barrier_sync(kBarConsumers, kConsumerThreads);  // gemm1 is over: the sums may overwrite Gemm1Smem
  for (int i = thread; i < args.num_tokens * kVectors; i += kConsumerThreads)
    *reinterpret_cast<float4*>(sums + i / kVectors * kSumPitch + i % kVectors * 4) = make_float4(0, 0, 0, 0);
  named_barrier_sync(kBarConsumers, kConsumerThreads);

  for (int n = split, i = 0; n < s.num_chunks; n += kChunkSplits, i++) {
    const Chunk chunk = s.chunk[n];
    const float w_scales = next_scales;
    next_scales = scales_of(n + kChunkSplits);
    if (chunk.rows <= 8) gemm2_chunk<8>(s, args, pipe, chunk, w_scales, warpgroup, i);
    else if (chunk.rows <= 16) gemm2_chunk<16>(s, args, pipe, chunk, w_scales, warpgroup, i);
    else if (chunk.rows <= 32) gemm2_chunk<32>(s, args, pipe, chunk, w_scales, warpgroup, i);
    else gemm2_chunk<64>(s, args, pipe, chunk, w_scales, warpgroup, i);
  }
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  if constexpr (kChunkSplits > 1) return reduce_chunk_splits(args, sums, column_tile, split);

  constexpr int kOctets = kColumnTile / 8;
  for (int i = thread; i < args.num_tokens * kOctets; i += kConsumerThreads) {
    const float4* sum = reinterpret_cast<const float4*>(sums + i / kOctets * kSumPitch + i % kOctets * 8);
    const float4 u = sum[0], v = sum[1];
    *reinterpret_cast<uint4*>(args.output + (size_t)(i / kOctets) * kHidden + column_tile * kColumnTile +
                              i % kOctets * 8) =
        make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w), pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  }
}
