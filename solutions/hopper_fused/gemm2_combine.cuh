// gemm2_combine: a block owns 64 output columns for all tokens and adds the experts' rows there, in order of expert.
//
// No other block writes these columns, so there are no atomics, no second pass, and the sum is the same in every run.
// The warpgroups take turns of the K steps; each adds its half to the sums when its turn at them comes.
#pragma once
#include <cuda_bf16.h>

#include "gemm1_swiglu_quant.cuh"

__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

template <int N>
__device__ __forceinline__ void promote(
    float (&acc)[N / 2], const float (&raw)[N / 2], const float* scales, int unit) {
  const int pair = 2 * (threadIdx.x % 4);
  const float w = scales[4 * kChunk];
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const float s0 = scales[4 * (8 * j + pair) + unit] * w, s1 = scales[4 * (8 * j + pair + 1) + unit] * w;
    acc[4 * j + 0] += raw[4 * j + 0] * s0;
    acc[4 * j + 1] += raw[4 * j + 1] * s1;
    acc[4 * j + 2] += raw[4 * j + 2] * s0;
    acc[4 * j + 3] += raw[4 * j + 3] * s1;
  }
}

// Y = W2 . (q(h) + q(h - q(h)))^T over this warpgroup's K steps; both terms have one scale, hence one accumulator.
template <int N>
__device__ __forceinline__ void gemm2(Smem& s, Ring& ring, float (&acc)[N / 2], int warpgroup) {
  float raw[2][N / 2];
  const int base = ring.step;
  const bool elected = threadIdx.x % 32 == 0;
  auto slot_of = [&](int k) { return (base + k) % kStages; };
  auto let_go = [&](int k) {
    __syncwarp();
    if (elected) mbar_arrive(&s.empty[slot_of(k)]);
  };
  auto wait = [&](int k) {
    ring.step = base + k;
    mbar_wait(&s.full[ring.slot()], ring.phase());
  };
  auto issue = [&](int k, int unit, float (&r)[N / 2]) {
    const uint8_t* w = s.ring[slot_of(k)];
    const uint64_t a = wgmma_operand(w, 1024) + 2 * unit;
    const uint64_t high = wgmma_operand(w + kUnitBytes, 2048) + 2 * unit, low = high + (1024 >> 4);
    wgmma_begin();
    Wgmma<N>::mma(r, a, high, 0);
    Wgmma<N>::mma(r, a, low, 1);
    wgmma_commit();
  };
  auto retire = [&](int k, int unit, float (&r)[N / 2]) {
    wgmma_wait<1>();
    pin(r);
    promote<N>(acc, r, s.scales[slot_of(k)], unit);
  };
  for (int k = 0; k < kK2; k += 2) {
    const int mine = k + warpgroup, other = k + 1 - warpgroup;
    if (warpgroup == 1) {
      wait(other);
      let_go(other);
    }
    wait(mine);
    issue(mine, 0, raw[0]);
    issue(mine, 1, raw[1]);
    retire(mine, 0, raw[0]);
    issue(mine, 2, raw[0]);
    retire(mine, 1, raw[1]);
    issue(mine, 3, raw[1]);
    retire(mine, 2, raw[0]);
    wgmma_wait<0>();
    retire(mine, 3, raw[1]);
    let_go(mine);
    if (warpgroup == 0) {
      wait(other);
      let_go(other);
    }
  }
  ring.step = base + kK2;
}

template <int N>
__device__ __forceinline__ void gemm2_segment(
    Smem& s, Ring& ring, const Segment& seg, const uint16_t* token, float* out, int pitch, int warpgroup, bool first) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  gemm2<N>(s, ring, acc, warpgroup);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float* column = out + 16 * warp + lane / 4;
  // first, second, first, second, ...: one warpgroup at a time adds to the sums
  if (warpgroup == 1) bar_sync(kBarFirstDone, kConsumers);
  else if (!first) bar_sync(kBarSecondDone, kConsumers);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % 4) + p;
      if (r >= seg.rows) continue;
      float* sum = column + (size_t)token[seg.first_row + r] * pitch;
      sum[0] += acc[4 * j + p];
      sum[8] += acc[4 * j + 2 + p];
    }
  }
  bar_arrive(warpgroup == 0 ? kBarFirstDone : kBarSecondDone, kConsumers);
}

__device__ __forceinline__ void gemm2_combine(Smem& s, const Args& a, Ring& ring, int warpgroup) {
  const bool few = a.num_tokens <= kSmemOutTokens;
  const uint16_t* token = few ? s.rows.few.token : s.rows.many.token;
  float* out = few ? &s.rows.few.out[0][0] : &a.scratch->out[0][blockIdx.x * kColumns];
  const int pitch = few ? kOutPitch : kHidden;
  const int thread = threadIdx.x % kConsumers;
  constexpr int kVectors = kColumns / 4;
  for (int i = thread; i < a.num_tokens * kVectors; i += kConsumers)
    *reinterpret_cast<float4*>(out + (size_t)(i / kVectors) * pitch + i % kVectors * 4) = make_float4(0, 0, 0, 0);
  bar_sync(kBarConsumers, kConsumers);

  for (int i = 0; i < s.num_segments; i++) {
    const Segment seg = s.segment[i];
    if (seg.rows <= 8) gemm2_segment<8>(s, ring, seg, token, out, pitch, warpgroup, i == 0);
    else if (seg.rows <= 16) gemm2_segment<16>(s, ring, seg, token, out, pitch, warpgroup, i == 0);
    else if (seg.rows <= 32) gemm2_segment<32>(s, ring, seg, token, out, pitch, warpgroup, i == 0);
    else gemm2_segment<64>(s, ring, seg, token, out, pitch, warpgroup, i == 0);
  }
  if (warpgroup == 0 && s.num_segments > 0) bar_sync(kBarSecondDone, kConsumers);
  bar_sync(kBarConsumers, kConsumers);

  constexpr int kOctets = kColumns / 8;
  for (int i = thread; i < a.num_tokens * kOctets; i += kConsumers) {
    const float4* sum = reinterpret_cast<const float4*>(out + (size_t)(i / kOctets) * pitch + i % kOctets * 8);
    const float4 u = sum[0], v = sum[1];
    *reinterpret_cast<uint4*>(a.output + (size_t)(i / kOctets) * kHidden + blockIdx.x * kColumns + i % kOctets * 8) =
        make_uint4(bf16_pair(u.x, u.y), bf16_pair(u.z, u.w), bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
  }
}
