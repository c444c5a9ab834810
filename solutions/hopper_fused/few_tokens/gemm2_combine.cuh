// gemm2_combine: a block owns 64 output columns for all tokens and adds the experts' rows there, in order of expert.
//
// No other block writes these columns, so there is no second pass, and the sum is the same in every run.
// The warpgroups take turns of the K steps; each adds its half to the sums when its turn at them comes.
#pragma once
#include <cuda_bf16.h>

#include "gemm1_swiglu_quant.cuh"

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Waits until no more than `kPending` products run and adds the one before, of one unit. Its scales are read first, as in
// gemm1.
template <int N, int kPending>
__device__ __forceinline__ void promote(float (&acc)[N / 2], float (&raw)[N / 2], const float* scales, float w) {
  const float* pair = scales + 8 * (threadIdx.x % 4) + (3 - kPending);  // two rows of four units
  float2 h[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++) h[j] = make_float2(pair[4 * kAtomRows * j], pair[4 * kAtomRows * j + 4]);
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

// One K step of Y = W2 . (q(h) + q(h - q(h)))^T. Both terms have one scale, hence one accumulator; h has a scale for
// each unit of 32 columns, so each unit has an accumulator, added while the next ones run.
template <int N>
__device__ __forceinline__ void gemm2_step(
    float (&acc)[N / 2], const uint8_t* w, const uint8_t* h, const float* scales, float w_scale) {
  float raw[4][N / 2];
  const uint64_t a = make_smem_desc(w, kAtomBytes), high = make_smem_desc(h, 2 * kAtomBytes), low = high + (kAtomBytes >> 4);
  warpgroup_arrive();
#pragma unroll
  for (int slice = 0; slice < 4; slice++) {
    Wgmma<N>::mma(raw[slice], a + 2 * slice, high + 2 * slice, 0);
    Wgmma<N>::mma(raw[slice], a + 2 * slice, low + 2 * slice, 1);
    warpgroup_commit_batch();
  }
  promote<N, 3>(acc, raw[0], scales, w_scale);
  promote<N, 2>(acc, raw[1], scales, w_scale);
  promote<N, 1>(acc, raw[2], scales, w_scale);
  promote<N, 0>(acc, raw[3], scales, w_scale);
}

// This warpgroup's half of K: its half of each slot, or each second slot. w_scales: the weight blocks', one a K step, each
// in a lane.
template <int N>
__device__ __forceinline__ void gemm2(
    FusedSmem& s, PipelineState<kFusedStages>& pipe, float (&acc)[N / 2], int warpgroup, int groups, float w_scales) {
  constexpr bool kSplitK = N <= kSplitKRows2;
  constexpr int kKHalves = kSplitK ? 2 : 1;
  const int half = kSplitK ? warpgroup : 0;
  for (int i = 0; i < kKSteps2 / kKHalves; i++, pipe.next()) {
    const int stage = pipe.stage;
    if (kSplitK || i % 2 == warpgroup) {
      const int k = kKHalves * i + half;
      const float scale = __shfl_sync(0xffffffffu, w_scales, k);
      mbar_wait(&s.full[stage], pipe.phase);
      gemm2_step<N>(acc, s.stage(stage) + half * kSliceBytes,
                    s.stage(stage) + kKHalves * kSliceBytes + half * groups * 2 * kAtomBytes,
                    s.scales[stage] + half * groups * 4 * kAtomRows, scale);
    } else {
      mbar_wait(&s.full[stage], pipe.phase);
    }
    consumer_release(s, stage);
  }
}

template <int N>
__device__ __forceinline__ void gemm2_chunk(
    FusedSmem& s, const FusedArgs& args, PipelineState<kFusedStages>& pipe, const Chunk& chunk, float w_scales, int warpgroup, int number) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  gemm2<N>(s, pipe, acc, warpgroup, chunk.groups(), w_scales);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float* column = s.sums(args.num_tokens) + 16 * warp + lane / 4;
  // first, second, first, second, ...: one warpgroup at a time adds to the sums
  if (warpgroup == 1) mbar_wait(&s.sums_added[0], number % 2);
  else if (number > 0) mbar_wait(&s.sums_added[1], (number - 1) % 2);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % 4) + p;
      if (r >= chunk.rows) continue;
      float* sum = column + s.token[chunk.first_row + r] * kSumPitch;
      sum[0] += acc[4 * j + p];
      sum[8] += acc[4 * j + 2 + p];
    }
  }
  mbar_arrive(&s.sums_added[warpgroup]);
}

// Where several blocks share columns: each stores its sums and, when all have, adds all blocks' up, in order of block, for
// its share of the tokens. No block waits for anything that another does later.
__device__ __forceinline__ void reduce_chunk_splits(const FusedArgs& args, const float* sums, int column_block, int split) {
  const int thread = threadIdx.x % kConsumerThreads;
  constexpr int kVectors = kColumnTile / 4, kOctets = kColumnTile / 8;
  FusedScratch& scratch = *args.scratch;
  for (int i = thread; i < args.num_tokens * kVectors; i += kConsumerThreads)
    __stcg(reinterpret_cast<float4*>(&scratch.partial[split][i / kVectors][column_block * kColumnTile + i % kVectors * 4]),
           *reinterpret_cast<const float4*>(sums + i / kVectors * kSumPitch + i % kVectors * 4));
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  if (thread == 0) {
    counter_arrive(&scratch.sums_added[column_block]);
    counter_wait(&scratch.sums_added[column_block], kChunkSplits);
  }
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  const int first = args.num_tokens * split / kChunkSplits, end = args.num_tokens * (split + 1) / kChunkSplits;
  for (int i = first * kOctets + thread; i < end * kOctets; i += kConsumerThreads) {
    const int t = i / kOctets, column = column_block * kColumnTile + i % kOctets * 8;
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

__device__ __forceinline__ void gemm2_combine(FusedSmem& s, const FusedArgs& args, PipelineState<kFusedStages>& pipe, int warpgroup) {
  const int thread = threadIdx.x % kConsumerThreads;
  constexpr int kVectors = kColumnTile / 4;
  float* sums = s.sums(args.num_tokens);
  const int column_block = blockIdx.x % kColumnTiles, split = blockIdx.x / kColumnTiles;
  // A segment's weight scales are asked for while the one before is multiplied.
  const auto scales_of = [&](int n) {
    if (n >= s.num_chunks) return 0.0f;
    const int block = s.chunk[n].expert * (kHidden / kBlockK) + column_block * kColumnTile / kBlockK;
    return __ldg(args.w2_scale + block * kKSteps2 + thread % 32 % kKSteps2);
  };
  float coming = scales_of(split);
  named_barrier_sync(kBarConsumers, kConsumerThreads);  // gemm1 no longer reads what lies where the sums will
  for (int i = thread; i < args.num_tokens * kVectors; i += kConsumerThreads)
    *reinterpret_cast<float4*>(sums + i / kVectors * kSumPitch + i % kVectors * 4) = make_float4(0, 0, 0, 0);
  named_barrier_sync(kBarConsumers, kConsumerThreads);

  for (int n = split, i = 0; n < s.num_chunks; n += kChunkSplits, i++) {
    const Chunk chunk = s.chunk[n];
    const float w_scales = coming;
    coming = scales_of(n + kChunkSplits);
    if (chunk.rows <= 8) gemm2_chunk<8>(s, args, pipe, chunk, w_scales, warpgroup, i);
    else if (chunk.rows <= 16) gemm2_chunk<16>(s, args, pipe, chunk, w_scales, warpgroup, i);
    else if (chunk.rows <= 32) gemm2_chunk<32>(s, args, pipe, chunk, w_scales, warpgroup, i);
    else gemm2_chunk<64>(s, args, pipe, chunk, w_scales, warpgroup, i);
  }
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  if constexpr (kChunkSplits > 1) return reduce_chunk_splits(args, sums, column_block, split);

  constexpr int kOctets = kColumnTile / 8;
  for (int i = thread; i < args.num_tokens * kOctets; i += kConsumerThreads) {
    const float4* sum = reinterpret_cast<const float4*>(sums + i / kOctets * kSumPitch + i % kOctets * 8);
    const float4 u = sum[0], v = sum[1];
    *reinterpret_cast<uint4*>(args.output + (size_t)(i / kOctets) * kHidden + column_block * kColumnTile + i % kOctets * 8) =
        make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w), pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  }
}
