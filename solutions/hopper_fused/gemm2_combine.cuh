// gemm2_combine: a block owns 64 output columns for all tokens and adds the experts' rows there, in order of expert.
//
// No other block writes these columns, so there is no second pass, and the sum is the same in every run.
// The warpgroups take turns of the K steps; each adds its half to the sums when its turn at them comes.
#pragma once
#include <cuda_bf16.h>

#include "gemm1_swiglu_quant.cuh"

__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
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
  for (int j = 0; j < N / 8; j++) h[j] = make_float2(pair[4 * kGroup * j], pair[4 * kGroup * j + 4]);
  wgmma_wait<kPending>();
  pin(raw);
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
  const uint64_t a = wgmma_operand(w, kTile8), high = wgmma_operand(h, 2 * kTile8), low = high + (kTile8 >> 4);
  wgmma_begin();
#pragma unroll
  for (int unit = 0; unit < 4; unit++) {
    Wgmma<N>::mma(raw[unit], a + 2 * unit, high + 2 * unit, 0);
    Wgmma<N>::mma(raw[unit], a + 2 * unit, low + 2 * unit, 1);
    wgmma_commit();
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
    Smem& s, Ring<kStages>& ring, float (&acc)[N / 2], int warpgroup, int groups, float w_scales) {
  constexpr bool kSplit = N <= kSplitRows2;
  constexpr int kHalves = kSplit ? 2 : 1;
  const int half = kSplit ? warpgroup : 0;
  for (int i = 0; i < kK2 / kHalves; i++, ring.next()) {
    const int slot = ring.slot;
    if (kSplit || i % 2 == warpgroup) {
      const int k = kHalves * i + half;
      const float scale = __shfl_sync(0xffffffffu, w_scales, k);
      mbar_wait(&s.full[slot], ring.phase);
      gemm2_step<N>(acc, s.slot(slot) + half * kUnitBytes,
                    s.slot(slot) + kHalves * kUnitBytes + half * groups * 2 * kTile8,
                    s.scales[slot] + half * groups * 4 * kGroup, scale);
    } else {
      mbar_wait(&s.full[slot], ring.phase);
    }
    let_go(s, slot);
  }
}

template <int N>
__device__ __forceinline__ void gemm2_segment(
    Smem& s, const Args& a, Ring<kStages>& ring, const Segment& seg, float w_scales, int warpgroup, int number) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  gemm2<N>(s, ring, acc, warpgroup, seg.groups(), w_scales);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float* column = s.sums(a.num_tokens) + 16 * warp + lane / 4;
  // first, second, first, second, ...: one warpgroup at a time adds to the sums
  if (warpgroup == 1) mbar_wait(&s.added[0], number % 2);
  else if (number > 0) mbar_wait(&s.added[1], (number - 1) % 2);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % 4) + p;
      if (r >= seg.rows) continue;
      float* sum = column + s.token[seg.first_row + r] * kOutPitch;
      sum[0] += acc[4 * j + p];
      sum[8] += acc[4 * j + 2 + p];
    }
  }
  mbar_arrive(&s.added[warpgroup]);
}

// Where several blocks share columns: each stores its sums and, when all have, adds all blocks' up, in order of block, for
// its share of the tokens. No block waits for anything that another does later.
__device__ __forceinline__ void add_parts(const Args& a, const float* sums, int column_block, int part) {
  const int thread = threadIdx.x % kConsumers;
  constexpr int kVectors = kColumns / 4, kOctets = kColumns / 8;
  Scratch& scratch = *a.scratch;
  for (int i = thread; i < a.num_tokens * kVectors; i += kConsumers)
    __stcg(reinterpret_cast<float4*>(&scratch.partial[part][i / kVectors][column_block * kColumns + i % kVectors * 4]),
           *reinterpret_cast<const float4*>(sums + i / kVectors * kOutPitch + i % kVectors * 4));
  bar_sync(kBarConsumers, kConsumers);
  if (thread == 0) {
    arrive_gpu(&scratch.added[column_block]);
    wait_gpu(&scratch.added[column_block], kParts);
  }
  bar_sync(kBarConsumers, kConsumers);
  const int first = a.num_tokens * part / kParts, end = a.num_tokens * (part + 1) / kParts;
  for (int i = first * kOctets + thread; i < end * kOctets; i += kConsumers) {
    const int t = i / kOctets, column = column_block * kColumns + i % kOctets * 8;
    float4 u = make_float4(0, 0, 0, 0), v = u;
#pragma unroll
    for (int p = 0; p < kParts; p++) {
      const float4* from = reinterpret_cast<const float4*>(&scratch.partial[p][t][column]);
      const float4 x = __ldcg(from), y = __ldcg(from + 1);
      u.x += x.x, u.y += x.y, u.z += x.z, u.w += x.w;
      v.x += y.x, v.y += y.y, v.z += y.z, v.w += y.w;
    }
    *reinterpret_cast<uint4*>(a.output + (size_t)t * kHidden + column) =
        make_uint4(bf16_pair(u.x, u.y), bf16_pair(u.z, u.w), bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
  }
}

__device__ __forceinline__ void gemm2_combine(Smem& s, const Args& a, Ring<kStages>& ring, int warpgroup) {
  const int thread = threadIdx.x % kConsumers;
  constexpr int kVectors = kColumns / 4;
  float* sums = s.sums(a.num_tokens);
  const int column_block = blockIdx.x % kColumnBlocks, part = blockIdx.x / kColumnBlocks;
  // A segment's weight scales are asked for while the one before is multiplied.
  const auto scales_of = [&](int n) {
    if (n >= s.num_segments) return 0.0f;
    const int block = s.segment[n].expert * (kHidden / kBlock) + column_block * kColumns / kBlock;
    return __ldg(a.w2_scale + block * kK2 + thread % 32 % kK2);
  };
  float coming = scales_of(part);
  bar_sync(kBarConsumers, kConsumers);  // gemm1 no longer reads what lies where the sums will
  for (int i = thread; i < a.num_tokens * kVectors; i += kConsumers)
    *reinterpret_cast<float4*>(sums + i / kVectors * kOutPitch + i % kVectors * 4) = make_float4(0, 0, 0, 0);
  bar_sync(kBarConsumers, kConsumers);

  for (int n = part, i = 0; n < s.num_segments; n += kParts, i++) {
    const Segment seg = s.segment[n];
    const float w_scales = coming;
    coming = scales_of(n + kParts);
    if (seg.rows <= 8) gemm2_segment<8>(s, a, ring, seg, w_scales, warpgroup, i);
    else if (seg.rows <= 16) gemm2_segment<16>(s, a, ring, seg, w_scales, warpgroup, i);
    else if (seg.rows <= 32) gemm2_segment<32>(s, a, ring, seg, w_scales, warpgroup, i);
    else gemm2_segment<64>(s, a, ring, seg, w_scales, warpgroup, i);
  }
  bar_sync(kBarConsumers, kConsumers);
  if constexpr (kParts > 1) return add_parts(a, sums, column_block, part);

  constexpr int kOctets = kColumns / 8;
  for (int i = thread; i < a.num_tokens * kOctets; i += kConsumers) {
    const float4* sum = reinterpret_cast<const float4*>(sums + i / kOctets * kOutPitch + i % kOctets * 8);
    const float4 u = sum[0], v = sum[1];
    *reinterpret_cast<uint4*>(a.output + (size_t)(i / kOctets) * kHidden + column_block * kColumns + i % kOctets * 8) =
        make_uint4(bf16_pair(u.x, u.y), bf16_pair(u.z, u.w), bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
  }
}
