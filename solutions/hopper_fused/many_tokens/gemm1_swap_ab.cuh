// many_gemm1_narrow: a tile of up to 64 rows. Weights are M: a warpgroup has 128 weight rows, two m64 in turn, and each
// thread a few columns of h of all rows, so a row's maximum goes through shared memory.
#pragma once
#include "h_store.cuh"

template <int N>
__device__ __forceinline__ void gemm1_swap_ab_mainloop(
    Gemm1Smem& s, PipelineState<Gemm1Smem::kStages>& pipe, float (&acc)[2][N / 2], int warpgroup) {
  float raw[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[m][i] = 0.0f;
  for (int k = 0; k < kKSteps1; k++, pipe.next()) {
    const int stage = pipe.stage;
    mbar_wait(&s.full[stage], pipe.phase);
    const float up = s.w_scales[stage][k % 4], gate = s.w_scales[stage][4 + k % 4];
    fence_proxy_async_shared();  // rows came by ordinary copies
    // all read before the slot is let go: a read still on its way then would find the next step's
    float2 x[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = *reinterpret_cast<const float2*>(s.scales[stage] + 8 * j + 2 * (threadIdx.x % 4));
#pragma unroll
    for (int m = 0; m < 2; m++) {
      warpgroup_arrive();
      mma_k_step<N>(raw, make_smem_desc(s.w[stage] + (2 * warpgroup + m) * 64 * kBlockK, kAtomBytes),
                      make_smem_desc(s.rows[stage][0], kAtomBytes), true);
      warpgroup_commit_batch();
      warpgroup_wait<0>();
      warpgroup_fence_operand(raw);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        acc[m][4 * j + 0] += raw[4 * j + 0] * (x[j].x * up);
        acc[m][4 * j + 1] += raw[4 * j + 1] * (x[j].y * up);
        acc[m][4 * j + 2] += raw[4 * j + 2] * (x[j].x * gate);
        acc[m][4 * j + 3] += raw[4 * j + 3] * (x[j].y * gate);
      }
    }
    cluster_consumer_release(s, stage);
  }
}

template <int N, int kTerms>
__device__ __forceinline__ void swiglu_quant_swap_ab(
    Gemm1Smem& s, const ManyArgs& args, const WorkTile& tile, float (&acc)[2][N / 2], int warpgroup) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* maxima = reinterpret_cast<float*>(s.staged);  // [8 warps][64]
  float* inverse = maxima + 8 * kSwapAbRows;           // [64]
  const int first_row = tile.first_row, rows = tile.rows;
  const float weight = threadIdx.x < N ? __ldg(args.row_weight + first_row + tile.first + threadIdx.x) : 0.0f;
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the last tile's h has left
  named_barrier_sync(kBarAll, kConsumerThreads);
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
      if (lane < 4) maxima[warp * kSwapAbRows + 8 * j + 2 * lane + p] = most;
    }
  }
  named_barrier_sync(kBarAll, kConsumerThreads);
  if (threadIdx.x < N) {
    float most = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) most = fmaxf(most, maxima[w * kSwapAbRows + threadIdx.x]);
    inverse[threadIdx.x] =
        store_scale(args.h_scale + (size_t)first_row * kKSteps2 + tile.column * rows + tile.first + threadIdx.x, most, weight);
  }
  named_barrier_sync(kBarAll, kConsumerThreads);
  float2 inv[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++) inv[j] = *reinterpret_cast<const float2*>(inverse + 8 * j + 2 * (lane % 4));
  named_barrier_sync(kBarAll, kConsumerThreads);
  // the lane's word: row 8 j + 2 (lane % 4) + parity, four columns of one m
  const int parity = lane / 4 % 2, m_of = lane / 8 % 2, in_row = 2 * (lane % 4) + parity;
  const int column = warpgroup * 64 + m_of * 32 + warp % 4 * 8 + lane / 16 * 4;
  const int at = swizzle_128b(in_row, column);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    uint32_t word[kTerms] = {};
#pragma unroll
    for (int m = 0; m < 2; m++) {
      uint16_t q[kTerms];
      quantize_fp8<kTerms>(q, acc[m][4 * j] * inv[j].x, acc[m][4 * j + 1] * inv[j].y);
#pragma unroll
      for (int term = 0; term < kTerms; term++) word[term] |= (uint32_t)q[term] << 16 * m;
    }
#pragma unroll
    for (int term = 0; term < kTerms; term++)
      *reinterpret_cast<uint32_t*>(s.staged[term] + j * kAtomBytes + at) = transpose4(word[term]);
  }
  fence_proxy_async_shared();
  named_barrier_sync(kBarAll, kConsumerThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {  // the first warpgroup's leader stores the first term, the second's the second
    if (warpgroup < kTerms) bulk_store(h_tile<kTerms>(args, tile, first_row, rows, warpgroup), s.staged[warpgroup], N * kBlockK);
    bulk_commit();
  }
}

template <int kTerms>
__device__ __forceinline__ void gemm1_swap_ab(
    Gemm1Smem& s, const ManyArgs& args, PipelineState<Gemm1Smem::kStages>& pipe, const WorkTile& tile, int warpgroup) {
  dispatch_swap_ab_rows(tile.n, [&](auto tile_rows) {
    constexpr int n = decltype(tile_rows)::count;
    float acc[2][n / 2];
    gemm1_swap_ab_mainloop<n>(s, pipe, acc, warpgroup);
    swiglu_quant_swap_ab<n, kTerms>(s, args, tile, acc, warpgroup);
  });
}
