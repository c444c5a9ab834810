// gemm1_swap_ab: a gemm1 tile of up to 64 rows. wgmma's M is weight rows: a warpgroup has 128, as two m64, one after
// the other. A thread has a few columns of h of several rows, so a row's maximum goes through shared memory.
#pragma once
#include <cstdint>

#include "barrier.cuh"
#include "gemm1_epilogue.cuh"
#include "grouped_gemm.cuh"
#include "numerics.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

template <int N>
__device__ __forceinline__ void gemm1_swap_ab_mainloop(
    Gemm1Smem& smem, Gemm1Smem::Pipeline& pipe, float (&sum)[2][N / 2], int warpgroup) {
  float accum[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[m][i] = 0.0f;
  for (int k = 0; k < kNumKBlocks1; k++, pipe.advance()) {
    const int stage = pipe.stage;
    mbar_wait(&smem.full[stage], pipe.phase);
    const float first = smem.w_scale[stage][k % kWScaleBlocks];
    const float second = smem.w_scale[stage][kWScaleBlocks + k % kWScaleBlocks];
    fence_proxy_async_shared();  // x arrived by cp.async, which is not in the async proxy
    // All scales are in registers before the stage is released: a later read might find those of another K block.
    float2 x[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      x[j] = *reinterpret_cast<const float2*>(smem.a_scale[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
#pragma unroll
    for (int m = 0; m < 2; m++) {
      warpgroup_arrive();
      mma_k_block<N>(accum, make_smem_desc(smem.w[stage] + (2 * warpgroup + m) * kMmaM * kBlockK, kAtomBytes),
                     make_smem_desc(smem.a[stage][0], kAtomBytes), true);
      warpgroup_commit_batch();
      warpgroup_wait<0>();
      warpgroup_fence_operand(accum);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        sum[m][4 * j + 0] += accum[4 * j + 0] * (x[j].x * first);
        sum[m][4 * j + 1] += accum[4 * j + 1] * (x[j].y * first);
        sum[m][4 * j + 2] += accum[4 * j + 2] * (x[j].x * second);
        sum[m][4 * j + 3] += accum[4 * j + 3] * (x[j].y * second);
      }
    }
    cluster_consumer_release(smem, stage);
  }
}

template <int N, int kHSplit>
__device__ __forceinline__ void swiglu_quant_swap_ab(
    Gemm1Smem& smem, const GroupedArgs& args, const WorkTile& tile, float (&sum)[2][N / 2], int warpgroup) {
  static_assert((kConsumerWarps + 1) * kSwapAbRows * sizeof(float) <= sizeof(smem.d), "maxima and inverses fit");
  static_assert(kHSplit <= 2, "one leader thread stores each part");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float* maxima = reinterpret_cast<float*>(smem.d);        // [8 warps][64 rows]
  float* inverse = maxima + kConsumerWarps * kSwapAbRows;  // [64 rows]
  const float weight =
      threadIdx.x < N ? __ldg(args.row_weight + tile.expert_first + tile.m_first + threadIdx.x) : 0.0f;
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the previous tile's h has been read from smem.d
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      float amax = 0.0f;
#pragma unroll
      for (int m = 0; m < 2; m++) {
        sum[m][4 * j + p] = swiglu_of_halves(sum[m][4 * j + p], sum[m][4 * j + 2 + p]);
        amax = fmaxf(amax, fabsf(sum[m][4 * j + p]));
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
    inverse[threadIdx.x] = store_scale(h_scale_tile(args, tile) + threadIdx.x, amax, weight);
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
      quantize_fp8<kHSplit>(q, sum[m][4 * j] * inv[j].x, sum[m][4 * j + 1] * inv[j].y);
#pragma unroll
      for (int part = 0; part < kHSplit; part++) word[part] |= (uint32_t)q[part] << 16 * m;
    }
#pragma unroll
    for (int part = 0; part < kHSplit; part++)
      *reinterpret_cast<uint32_t*>(smem.d[part] + j * kAtomBytes + at) = transpose4(word[part]);
  }
  fence_proxy_async_shared();
  named_barrier_sync(kBarGemm1Consumers, kConsumerThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {  // warpgroup 0's leader stores hi, warpgroup 1's lo
    if (warpgroup < kHSplit) bulk_store(h_tile<kHSplit>(args, tile, warpgroup), smem.d[warpgroup], N * kBlockK);
    bulk_commit();
  }
}

template <int kHSplit>
__device__ __forceinline__ void gemm1_swap_ab(
    Gemm1Smem& smem, const GroupedArgs& args, Gemm1Smem::Pipeline& pipe, const WorkTile& tile, int warpgroup) {
  dispatch_swap_ab_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    gemm1_swap_ab_mainloop<N>(smem, pipe, sum, warpgroup);
    swiglu_quant_swap_ab<N, kHSplit>(smem, args, tile, sum, warpgroup);
  });
}
