// gemm1_swiglu_quant: G = W13 . x^T for a tile, h = silu(gate) * up, and h in two FP8 terms.
//
// A unit is 64 weight rows, eight of up and eight of gate in turn, so a thread that holds a row of up in the
// accumulator's first half holds the same column's gate in its second, and SwiGLU stays in registers.
#pragma once
#include "layer.cuh"
#include "sm90.cuh"
#include "swiglu_quant.cuh"
#include "weight_scales.cuh"

// The consumer's part in freeing a slot: each thread for what it has read itself. One lane for its warp is no faster, and
// rests on a __syncwarp() that the compiler leaves out where it knows the warp to be together, so that racecheck objects.
__device__ __forceinline__ void let_go(Smem& s, int slot) { mbar_arrive(&s.empty[slot]); }

// Steps that are the other warpgroup's alone: waiting keeps the phases in step.
__device__ __forceinline__ void pass_over(Smem& s, Ring<kStages>& ring, int steps) {
  for (int i = 0; i < steps; i++, ring.next()) {
    mbar_wait(&s.full[ring.slot], ring.phase);
    let_go(s, ring.slot);
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
template <int N, bool kDirect>
__device__ __forceinline__ void gemm1(
    Smem& s, const Args& a, const Tile& tile, Ring<kStages>& ring, float (&acc)[N / 2], int half, bool split) {
  const int block = (tile.segment.expert * 2 * kInter + tile.unit * kUnit) / kBlock, groups = tile.segment.groups();
  const StepScales up(a.w1_scale + block * kK1), gate(a.w1_scale + (block + kInter / kBlock) * kK1);
  const float* direct_scale = s.few().x_scale + s.token[tile.segment.first_row];
  float raw[2][N / 2];
  float2 x_scale[2][N / 8];
  const int halves = split ? 2 : 1, my_k = split ? half : 0, steps = kK1 / halves;
  auto issue = [&](int slot, int phase, int k, float (&r)[N / 2]) {
    mbar_wait(&s.full[slot], phase);
    const uint64_t a = wgmma_operand(s.slot(slot) + half * kUnitBytes, kTile8);
    const uint64_t b = kDirect ? wgmma_row(s.direct_row(tile.turn) + k * kBlock)
                               : wgmma_operand(s.slot(slot) + kSlotW + my_k * groups * kTile8, kTile8);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) Wgmma<N>::mma(r, a + 2 * i, b + 2 * i, i > 0);
    wgmma_commit();
  };
  auto read_scales = [&](int slot, int k, float2 (&x)[N / 8]) {
    const float* scales = s.scales[slot] + my_k * groups * kGroup + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = kDirect ? make_float2(direct_scale[k * a.num_tokens], 0.0f)  // of the one row, which the first lanes have
                     : *reinterpret_cast<const float2*>(scales + j * kGroup);
  };
  for (int i = 0; i < steps; i += 2) {
    const int first = ring.slot, k = i * halves + my_k, next_k = k + halves;
    issue(first, ring.phase, k, raw[0]);
    ring.next();
    issue(ring.slot, ring.phase, next_k, raw[1]);
    read_scales(first, k, x_scale[0]);
    read_scales(ring.slot, next_k, x_scale[1]);
    wgmma_wait<1>();
    pin(raw[0]);
    promote_up_gate<N>(acc, raw[0], x_scale[0], up.of(k), gate.of(k));
    let_go(s, first);
    wgmma_wait<0>();
    pin(raw[1]);
    promote_up_gate<N>(acc, raw[1], x_scale[1], up.of(next_k), gate.of(next_k));
    let_go(s, ring.slot);
    ring.next();
  }
}

// SwiGLU, quantisation and the store of h; the scale carries the routing weight on. A thread has rows 2 (lane % 4) and
// the next of each group of 8, of one column of the unit; then four columns of one row and term.
template <int N>
__device__ __forceinline__ void swiglu_quant(
    Smem& s, const Args& a, const Tile& tile, const float (&acc)[N / 2], int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int unit = tile.unit + (tile.width == 2 ? warpgroup : 0);
  float(*most)[kChunk] = s.amax[warpgroup];
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
  bar_sync(kBarWarpgroup0 + warpgroup, kWarpgroup);
  const bool all_route = a.num_tokens <= kFewTokens;
  const int column = unit * kUnit + 8 * warp + lane / 16 * 4, row = 2 * (lane % 4) + lane / 4 % 2, term = lane / 8 % 2;
  uint8_t* to = a.scratch->h + tile.segment.h_at(column / kBlock) + term * kTile8 + swizzled(row, column % kBlock);
  float* scale_to = a.scratch->h_scale + tile.segment.h_scale_at(column / kBlock) + unit % 4;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    if (j >= tile.segment.groups()) break;
    float v[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % 4) + p;
      const float scale = row_scale(fmaxf(fmaxf(most[0][r], most[1][r]), fmaxf(most[2][r], most[3][r])));
      v[p] = h[2 * j + p] * reciprocal(scale);
      if (warp == 0 && lane < 4) {
        const int t = s.token[tile.segment.first_row + r], e = tile.segment.expert;
        const float weight = t == kNoToken ? 0.0f : all_route ? s.few().weight[t][e] : __ldcg(&a.scratch->weight[t][e]);
        scale_to[4 * r] = scale * weight;
      }
    }
    uint16_t q[2];
    quantise<2>(q, v[0], v[1]);
    *reinterpret_cast<uint32_t*>(to + j * 2 * kTile8) = transpose4(q[0] | (uint32_t)q[1] << 16);
  }
  bar_sync_apart(kBarUnitDone0 + warpgroup, kWarpgroup + 32);  // which also keeps the next tile from `most`
}

// For one warp beside each warpgroup: tells the other blocks of each unit of h that is stored. The barrier puts the
// warpgroup's writes before the release; whoever reads them by bulk copy fences between its acquire and the copy. The
// release takes a trip to L2, in which the warpgroup is at its next tile.
__device__ __forceinline__ void announce_units(const Smem& s, const Args& a, int warpgroup) {
  Tile tile;
  for (Tiles tiles(s); tiles.take(tile);) {
    if (warpgroup == 1 && tile.width == 1) continue;
    bar_sync_apart(kBarUnitDone0 + warpgroup, kWarpgroup + 32);
    if (threadIdx.x % 32 == 0) arrive_gpu(&a.scratch->activated[tile.number]);
  }
}

template <int N, bool kDirect>
__device__ __forceinline__ void gemm1_tile(
    Smem& s, const Args& a, const Tile& tile, Ring<kStages>& ring, int& handovers, int warpgroup) {
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  if (!tile.split()) {
    if (tile.width == 1 && warpgroup == 1) return pass_over(s, ring, kK1);
    gemm1<N, kDirect>(s, a, tile, ring, acc, warpgroup, false);
    swiglu_quant<N>(s, a, tile, acc, warpgroup);
    return;
  }
  gemm1<N, kDirect>(s, a, tile, ring, acc, warpgroup, true);
  // each warpgroup has half of K: the second hands its sums over, four values at a time for want of room
  const int thread = threadIdx.x % kWarpgroup;
  constexpr int kPieces = N / 2 / 4;
#pragma unroll
  for (int piece = 0; piece < kPieces; piece++, handovers++) {
    if (warpgroup == 1) {
      if (handovers > 0) mbar_wait(&s.taken, (handovers - 1) % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) s.handover[i][thread] = acc[4 * piece + i];
      mbar_arrive(&s.handed);
    } else {
      mbar_wait(&s.handed, handovers % 2);
#pragma unroll
      for (int i = 0; i < 4; i++) acc[4 * piece + i] += s.handover[i][thread];
      mbar_arrive(&s.taken);
    }
  }
  if (warpgroup == 0) swiglu_quant<N>(s, a, tile, acc, 0);
}

__device__ __forceinline__ void gemm1_swiglu_quant(Smem& s, const Args& a, Ring<kStages>& ring, int warpgroup) {
  Tile tile;
  int handovers = 0;  // from the second warpgroup to the first, in all tiles so far
  for (Tiles tiles(s); tiles.take(tile);) {
    const int rows = tile.segment.rows;
    if (tile.segment.direct(a.num_tokens)) gemm1_tile<8, true>(s, a, tile, ring, handovers, warpgroup);
    else if (rows <= 8) gemm1_tile<8, false>(s, a, tile, ring, handovers, warpgroup);
    else if (rows <= 16) gemm1_tile<16, false>(s, a, tile, ring, handovers, warpgroup);
    else if (rows <= 32) gemm1_tile<32, false>(s, a, tile, ring, handovers, warpgroup);
    else gemm1_tile<64, false>(s, a, tile, ring, handovers, warpgroup);
  }
}
