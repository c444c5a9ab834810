// many_gemm1_narrow: a tile of up to 64 rows. Weights are M: a warpgroup has 128 weight rows, two m64 in turn, and each
// thread a few columns of h of all rows, so a row's maximum goes through shared memory.
#pragma once
#include "many_h.cuh"

template <int N>
__device__ __forceinline__ void product1_narrow(
    Smem1& s, Ring<Smem1::kStages>& ring, float (&acc)[2][N / 2], int warpgroup) {
  float raw[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[m][i] = 0.0f;
  for (int k = 0; k < kK1; k++, ring.next()) {
    const int slot = ring.slot;
    mbar_wait(&s.full[slot], ring.phase);
    const float up = s.w_scales[slot][k % 4], gate = s.w_scales[slot][4 + k % 4];
    fence_async_shared();  // rows came by ordinary copies
    // all read before the slot is let go: a read still on its way then would find the next step's
    float2 x[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = *reinterpret_cast<const float2*>(s.scales[slot] + 8 * j + 2 * (threadIdx.x % 4));
#pragma unroll
    for (int m = 0; m < 2; m++) {
      wgmma_begin();
      product_step<N>(raw, wgmma_operand(s.w[slot] + (2 * warpgroup + m) * 64 * kBlock, kTile8),
                      wgmma_operand(s.rows[slot][0], kTile8), true);
      wgmma_commit();
      wgmma_wait<0>();
      pin(raw);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        acc[m][4 * j + 0] += raw[4 * j + 0] * (x[j].x * up);
        acc[m][4 * j + 1] += raw[4 * j + 1] * (x[j].y * up);
        acc[m][4 * j + 2] += raw[4 * j + 2] * (x[j].x * gate);
        acc[m][4 * j + 3] += raw[4 * j + 3] * (x[j].y * gate);
      }
    }
    let_go_many(s, slot);
  }
}

template <int N, int kTerms>
__device__ __forceinline__ void swiglu_quant_narrow(
    Smem1& s, const ManyArgs& a, const Item& item, float (&acc)[2][N / 2], int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* maxima = reinterpret_cast<float*>(s.staged);  // [8 warps][64]
  float* inverse = maxima + 8 * kNarrowRows;           // [64]
  const int first_row = item.first_row, rows = item.rows;
  const float weight = threadIdx.x < N ? __ldg(a.row_weight + first_row + item.first + threadIdx.x) : 0.0f;
  if (threadIdx.x % kWarpgroup == 0) bulk_wait_read();  // the last tile's h has left
  bar_sync(kBarAll, kConsumers);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      float most = 0.0f;
#pragma unroll
      for (int m = 0; m < 2; m++) {
        acc[m][4 * j + p] = swiglu(acc[m][4 * j + p], acc[m][4 * j + 2 + p]);
        most = fmaxf(most, fabsf(acc[m][4 * j + p]));
      }
#pragma unroll
      for (int d = 4; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
      if (lane < 4) maxima[warp * kNarrowRows + 8 * j + 2 * lane + p] = most;
    }
  }
  bar_sync(kBarAll, kConsumers);
  if (threadIdx.x < N) {
    float most = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) most = fmaxf(most, maxima[w * kNarrowRows + threadIdx.x]);
    inverse[threadIdx.x] =
        store_scale(a.h_scale + (size_t)first_row * kK2 + item.column * rows + item.first + threadIdx.x, most, weight);
  }
  bar_sync(kBarAll, kConsumers);
  float2 inv[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++) inv[j] = *reinterpret_cast<const float2*>(inverse + 8 * j + 2 * (lane % 4));
  bar_sync(kBarAll, kConsumers);
  // the lane's word: row 8 j + 2 (lane % 4) + parity, four columns of one m
  const int parity = lane / 4 % 2, m_of = lane / 8 % 2, in_row = 2 * (lane % 4) + parity;
  const int column = warpgroup * 64 + m_of * 32 + warp % 4 * 8 + lane / 16 * 4;
  const int at = swizzled(in_row, column);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    uint32_t word[kTerms] = {};
#pragma unroll
    for (int m = 0; m < 2; m++) {
      uint16_t q[kTerms];
      quantise<kTerms>(q, acc[m][4 * j] * inv[j].x, acc[m][4 * j + 1] * inv[j].y);
#pragma unroll
      for (int term = 0; term < kTerms; term++) word[term] |= (uint32_t)q[term] << 16 * m;
    }
#pragma unroll
    for (int term = 0; term < kTerms; term++)
      *reinterpret_cast<uint32_t*>(s.staged[term] + j * kTile8 + at) = transpose4(word[term]);
  }
  fence_async_shared();
  bar_sync(kBarAll, kConsumers);
  if (threadIdx.x % kWarpgroup == 0) {  // the first warpgroup's leader stores the first term, the second's the second
    if (warpgroup < kTerms) bulk_store(h_at<kTerms>(a, item, first_row, rows, warpgroup), s.staged[warpgroup], N * kBlock);
    bulk_commit();
  }
}

template <int kTerms>
__device__ __forceinline__ void gemm1_narrow(
    Smem1& s, const ManyArgs& a, Ring<Smem1::kStages>& ring, const Item& item, int warpgroup) {
  with_narrow_rows(item.n, [&](auto tile_rows) {
    constexpr int n = decltype(tile_rows)::count;
    float acc[2][n / 2];
    product1_narrow<n>(s, ring, acc, warpgroup);
    swiglu_quant_narrow<n, kTerms>(s, a, item, acc, warpgroup);
  });
}
