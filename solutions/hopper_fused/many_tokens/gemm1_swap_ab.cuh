// gemm1_swap_ab: a gemm1 tile of up to 64 rows. wgmma's M is weight rows: a warpgroup has 128, as two m64, one after
// the other. A thread has a few columns of h of several rows, so a row's maximum goes through shared memory.
#pragma once
#include "barrier.cuh"
#include "epilogue.cuh"
#include "numerics.cuh"
#include "pipeline.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

template <int N>
__device__ __forceinline__ void gemm1_swap_ab_mainloop(
    Gemm1Smem& s, PipelineState<Gemm1Smem::kStages>& pipe, float (&acc)[2][N / 2], int warpgroup) {
  float raw[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[m][i] = 0.0f;
  for (int k = 0; k < kNumKBlocks1; k++, pipe.advance()) {
    const int stage = pipe.stage;
    mbar_wait(&s.full[stage], pipe.phase);
    const float first = s.w_scales[stage][k % kScaleSteps], second = s.w_scales[stage][kScaleSteps + k % kScaleSteps];
    fence_proxy_async_shared();  // rows arrived by cp.async, which is not in the async proxy
    // All scales are in registers before the stage is released: a later read might find those of another K step.
    float2 x[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = *reinterpret_cast<const float2*>(s.scales[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
#pragma unroll
    for (int m = 0; m < 2; m++) {
      warpgroup_arrive();
      mma_k_step<N>(raw, make_smem_desc(s.w[stage] + (2 * warpgroup + m) * kMmaM * kBlockK, kAtomBytes),
                    make_smem_desc(s.rows[stage][0], kAtomBytes), true);
      warpgroup_commit_batch();
      warpgroup_wait<0>();
      warpgroup_fence_operand(raw);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        acc[m][4 * j + 0] += raw[4 * j + 0] * (x[j].x * first);
        acc[m][4 * j + 1] += raw[4 * j + 1] * (x[j].y * first);
        acc[m][4 * j + 2] += raw[4 * j + 2] * (x[j].x * second);
        acc[m][4 * j + 3] += raw[4 * j + 3] * (x[j].y * second);
      }
    }
    cluster_consumer_release(s, stage);
  }
}

template <int N, int kHSplit>
__device__ __forceinline__ void swiglu_quant_swap_ab(
    Gemm1Smem& s, const ManyArgs& args, const WorkTile& tile, float (&acc)[2][N / 2], int warpgroup) {
  static_assert((kConsumerWarps + 1) * kSwapAbRows * sizeof(float) <= sizeof(s.staged), "maxima and inverses fit");
  static_assert(kHSplit <= 2, "one leader thread stores each term");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float* maxima = reinterpret_cast<float*>(s.staged);      // [8 warps][64 rows]
  float* inverse = maxima + kConsumerWarps * kSwapAbRows;  // [64 rows]
  const int first_row = tile.first_row, rows = tile.rows;
  const float weight = threadIdx.x < N ? __ldg(args.row_weight + first_row + tile.first + threadIdx.x) : 0.0f;
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the previous tile's h has been read from `staged`
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      float amax = 0.0f;
#pragma unroll
      for (int m = 0; m < 2; m++) {
        acc[m][4 * j + p] = swiglu_of_halves(acc[m][4 * j + p], acc[m][4 * j + 2 + p]);
        amax = fmaxf(amax, fabsf(acc[m][4 * j + p]));
      }
#pragma unroll
      for (int d = kQuad; d < kWarp; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, d));
      if (lane < kQuad) maxima[warp * kSwapAbRows + 8 * j + 2 * lane + p] = amax;
    }
  }
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);
  if (threadIdx.x < N) {
    float amax = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w++) amax = fmaxf(amax, maxima[w * kSwapAbRows + threadIdx.x]);
    inverse[threadIdx.x] = store_scale(
        args.h_scale + (size_t)first_row * kNumKBlocks2 + tile.column * rows + tile.first + threadIdx.x, amax, weight);
  }
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);
  float2 inv[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++) inv[j] = *reinterpret_cast<const float2*>(inverse + 8 * j + 2 * (lane % kQuad));
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);  // h overwrites maxima and inverses
  // After transpose4 a lane's word is four columns, of m64 number m_of, of row 8 j + in_row.
  const int parity = lane / kQuad % 2, m_of = lane / 8 % 2, in_row = 2 * (lane % kQuad) + parity;
  const int column = warpgroup * 64 + m_of * 32 + warp % kWarpgroupWarps * 8 + lane / 16 * 4;
  const int at = swizzle_128b(in_row, column);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    uint32_t word[kHSplit] = {};
#pragma unroll
    for (int m = 0; m < 2; m++) {
      uint16_t q[kHSplit];
      quantize_fp8<kHSplit>(q, acc[m][4 * j] * inv[j].x, acc[m][4 * j + 1] * inv[j].y);
#pragma unroll
      for (int term = 0; term < kHSplit; term++) word[term] |= (uint32_t)q[term] << 16 * m;
    }
#pragma unroll
    for (int term = 0; term < kHSplit; term++)
      *reinterpret_cast<uint32_t*>(s.staged[term] + j * kAtomBytes + at) = transpose4(word[term]);
  }
  fence_proxy_async_shared();
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {  // warpgroup 0's leader stores the first term, warpgroup 1's the second
    if (warpgroup < kHSplit)
      bulk_store(h_tile<kHSplit>(args, tile, first_row, rows, warpgroup), s.staged[warpgroup], N * kBlockK);
    bulk_commit();
  }
}

template <int kHSplit>
__device__ __forceinline__ void gemm1_swap_ab(
    Gemm1Smem& s, const ManyArgs& args, PipelineState<Gemm1Smem::kStages>& pipe, const WorkTile& tile, int warpgroup) {
  dispatch_swap_ab_rows(tile.n, [&](auto tile_rows) {
    constexpr int n = decltype(tile_rows)::count;
    float acc[2][n / 2];
    gemm1_swap_ab_mainloop<n>(s, pipe, acc, warpgroup);
    swiglu_quant_swap_ab<n, kHSplit>(s, args, tile, acc, warpgroup);
  });
}
