// gemm1_swiglu_quant: G = W13 . x^T for a tile, h = silu(gate) * up, and h in two FP8 terms.
//
// A unit is 64 weight rows, eight of up and eight of gate in turn, so a thread that holds a row of up in the
// accumulator's first half holds the same column's gate in its second, and SwiGLU stays in registers.
#pragma once
#include "layer.cuh"
#include "sm90.cuh"

enum NamedBarrier { kBarWarpgroup0 = 1, kBarWarpgroup1 = 2, kBarConsumers = 3, kBarFirstDone = 4, kBarSecondDone = 5 };

// Adds one K step's product, scaled. xs: row scales; up, gate: this step's weight scales.
template <int N>
__device__ __forceinline__ void promote_up_gate(float (&acc)[N / 2], const float (&raw)[N / 2], const float* scales) {
  const int pair = 2 * (threadIdx.x % 4);
  const float up = scales[4 * kChunk], gate = scales[4 * kChunk + 1];
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const float2 x = *reinterpret_cast<const float2*>(scales + 8 * j + pair);
    acc[4 * j + 0] += raw[4 * j + 0] * (x.x * up);
    acc[4 * j + 1] += raw[4 * j + 1] * (x.y * up);
    acc[4 * j + 2] += raw[4 * j + 2] * (x.x * gate);
    acc[4 * j + 3] += raw[4 * j + 3] * (x.y * gate);
  }
}

// Sum over K, two steps at a time: the second's product runs while the first's is scaled and added.
// With `split_k` the two warpgroups take turns of one unit's K steps; otherwise each has a unit of its own.
template <int N>
__device__ __forceinline__ void gemm1(Smem& s, Ring& ring, float (&acc)[N / 2], int warpgroup, bool split_k) {
  float raw[2][N / 2];
  const int stride = split_k ? 2 : 1, first = split_k ? warpgroup : 0;
  const int base = ring.step;
  const bool elected = threadIdx.x % 32 == 0;
  auto slot_of = [&](int k) { return (base + k) % kStages; };
  auto skip = [&](int k) {  // a step of the other warpgroup: wait so that phases stay in step, then let go
    ring.step = base + k;
    mbar_wait(&s.full[ring.slot()], ring.phase());
    if (elected) mbar_arrive(&s.empty[ring.slot()]);
  };
  auto issue = [&](int k, float (&r)[N / 2]) {
    if (split_k && warpgroup == 1) skip(k - 1);
    ring.step = base + k;
    mbar_wait(&s.full[ring.slot()], ring.phase());
    const uint8_t* w = s.ring[ring.slot()] + (split_k ? 0 : warpgroup * kUnitBytes);
    const uint64_t a = wgmma_operand(w, 1024), b = wgmma_operand(s.ring[ring.slot()] + kSlotW, 1024);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) Wgmma<N>::mma(r, a + 2 * i, b + 2 * i, i > 0);
    wgmma_commit();
    if (split_k && warpgroup == 0) skip(k + 1);
  };
  auto retire = [&](int k, float (&r)[N / 2]) {
    pin(r);
    promote_up_gate<N>(acc, r, s.scales[slot_of(k)]);
    __syncwarp();
    if (elected) mbar_arrive(&s.empty[slot_of(k)]);
  };
  for (int k = first; k < kK1; k += 2 * stride) {
    issue(k, raw[0]);
    issue(k + stride, raw[1]);
    wgmma_wait<1>();
    retire(k, raw[0]);
    wgmma_wait<0>();
    retire(k + stride, raw[1]);
  }
  ring.step = base + kK1;
}

// SwiGLU, quantisation and the store of h; the scale carries the routing weight on.
template <int N>
__device__ __forceinline__ void swiglu_quant(
    Smem& s, const Args& a, const Tile& tile, const float (&acc)[N / 2], int warpgroup, int parity) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int unit = tile.unit + (tile.width == 2 ? warpgroup : 0);
  const bool few = a.num_tokens <= kFewTokens;
  const uint16_t* token = a.num_tokens <= kSmemOutTokens ? s.rows.few.token : s.rows.many.token;
  float h[N / 4];
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const float up = acc[4 * j + p], gate = acc[4 * j + 2 + p];
      const float v = up * (gate / (1.0f + expf(-gate)));
      h[2 * j + p] = v;
      float m = fabsf(v);
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 4));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 8));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 16));
      if (lane < 4) s.amax[parity][warpgroup][warp][8 * j + 2 * lane + p] = m;
    }
  }
  bar_sync(kBarWarpgroup0 + warpgroup, kWarpgroup);
  const int column = unit * kUnit + 8 * warp + lane / 4;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % 4) + p;
      if (r >= tile.rows) continue;
      const float(*amax)[kChunk] = s.amax[parity][warpgroup];
      const float m = fmaxf(fmaxf(amax[0][r], amax[1][r]), fmaxf(amax[2][r], amax[3][r]));
      const float scale = m > 0.0f ? m / 448.0f : 1.0f;
      const float v = h[2 * j + p] / scale;
      const __nv_fp8_e4m3 high(v);
      const __nv_fp8_e4m3 low(v - float(high));
      const int row = tile.first_row + r;
      a.scratch->h[row][0][column] = high.__x;
      a.scratch->h[row][1][column] = low.__x;
      if (warp == 0 && lane < 4) {
        const int t = token[row];
        const float weight = few ? s.rows.few.weight[t][tile.expert] : __ldcg(&a.scratch->weight[t][tile.expert]);
        a.scratch->h_scale[row][unit] = scale * weight;
      }
    }
  }
}

template <int N>
__device__ __forceinline__ void gemm1_tile(
    Smem& s, const Args& a, const Tile& tile, Ring& ring, int warpgroup, int parity) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  if (tile.width == 2) {
    gemm1<N>(s, ring, acc, warpgroup, false);
    swiglu_quant<N>(s, a, tile, acc, warpgroup, parity);
    return;
  }
  gemm1<N>(s, ring, acc, warpgroup, true);
  // each warpgroup has half of K: the second hands its sums over, eight rows at a time where room is short
  float* handover = reinterpret_cast<float*>(s.amax) + threadIdx.x % kWarpgroup;
  constexpr int kPieces = N / 2 / 4;
#pragma unroll
  for (int piece = 0; piece < kPieces; piece++) {
    if (warpgroup == 1) {
#pragma unroll
      for (int i = 0; i < 4; i++) handover[i * kWarpgroup] = acc[4 * piece + i];
    }
    bar_sync(kBarConsumers, kConsumers);
    if (warpgroup == 0) {
#pragma unroll
      for (int i = 0; i < 4; i++) acc[4 * piece + i] += handover[i * kWarpgroup];
    }
    bar_sync(kBarConsumers, kConsumers);
  }
  if (warpgroup == 0) swiglu_quant<N>(s, a, tile, acc, 0, parity);
}

__device__ __forceinline__ void gemm1_swiglu_quant(Smem& s, const Args& a, Ring& ring, int warpgroup) {
  Tile tile;
  int parity = 0;
  for (Tiles tiles(s); tiles.take(tile); parity ^= 1) {
    if (tile.rows <= 8) gemm1_tile<8>(s, a, tile, ring, warpgroup, parity);
    else if (tile.rows <= 16) gemm1_tile<16>(s, a, tile, ring, warpgroup, parity);
    else if (tile.rows <= 32) gemm1_tile<32>(s, a, tile, ring, warpgroup, parity);
    else gemm1_tile<64>(s, a, tile, ring, warpgroup, parity);
  }
}
