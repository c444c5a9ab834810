// gemm1_normal: a gemm1 tile of 65 to 128 rows. A thread has sums of two rows. The four lanes of a quad have a row's
// 128 columns of h between them, so a row's maximum needs no shared memory and the warpgroups do not wait for each
// other.
#pragma once
#include <cstdint>

#include "barrier.cuh"
#include "gemm1_epilogue.cuh"
#include "normal_mainloop.cuh"
#include "numerics.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

__device__ __forceinline__ void gemm1_normal_mainloop(
    Gemm1Smem& smem, Gemm1Smem::Pipeline& pipe, float (&sum)[kNormalSums], int warpgroup) {
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const auto read = [&](int k, int stage) {
    const float x0 = smem.a_scale[stage][row], x1 = smem.a_scale[stage][row + 8];
    const float first = smem.w_scale[stage][k % kWScaleBlocks];
    const float second = smem.w_scale[stage][kWScaleBlocks + k % kWScaleBlocks];
    return NormalScales{{{x0 * first, x1 * first}, {x0 * second, x1 * second}}};
  };
  // weight rows are interleaved: 8 of W13's first half, 8 of the second
  normal_mainloop<1, kNumKBlocks1, true>(smem, pipe, sum, warpgroup, read, [](int j) { return j % 2; });
}

template <int kHSplit>
__device__ __forceinline__ void gemm1_normal(
    Gemm1Smem& smem, const GroupedArgs& args, Gemm1Smem::Pipeline& pipe, const WorkTile& tile, int warpgroup) {
  static_assert(kHSplit * kMmaM * kBlockK <= sizeof(smem.d[0]), "a warpgroup's h fits into its part of smem.d");
  const int lane = threadIdx.x % kWarp;
  const int in_warpgroup = threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + lane / kQuad;  // this thread's first row
  const int m_rows = min(kMmaM, tile.m_rows - warpgroup * kMmaM);  // of this warpgroup; not positive if it has none
  const int first_row = tile.expert_first + tile.m_first + warpgroup * kMmaM;
  float weight[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    weight[r] = in_warpgroup + 8 * r < m_rows ? __ldg(args.row_weight + first_row + in_warpgroup + 8 * r) : 0.0f;
  float sum[kNormalSums];
  gemm1_normal_mainloop(smem, pipe, sum, warpgroup);

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {  // rows in_warpgroup and in_warpgroup + 8
    float amax = 0.0f;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8)
#pragma unroll
      for (int p = 0; p < 2; p++) {
        sum[i + p] = swiglu_of_halves(sum[i + p], sum[i + 4 + p]);
        amax = fmaxf(amax, fabsf(sum[i + p]));
      }
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 2));
    inverse[r] = 0.0f;
    const int row = in_warpgroup + 8 * r;
    if (lane % kQuad == 0 && row < m_rows)
      inverse[r] = store_scale(h_scale_tile(args, tile) + warpgroup * kMmaM + row, amax, weight[r]);
    inverse[r] = __shfl_sync(kFullWarp, inverse[r], lane & ~(kQuad - 1));
  }
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the previous tile's h has been read from smem.d
  named_barrier_sync(kBarGemm1Warpgroup + warpgroup, kWarpgroupThreads);
  uint8_t* smem_d = smem.d[warpgroup];  // [part][64 rows][128], swizzled
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = in_warpgroup + 8 * r;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8) {
      uint16_t q[kHSplit];
      quantize_fp8<kHSplit>(q, sum[i] * inverse[r], sum[i + 1] * inverse[r]);
      const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, i / 8 * 8 + 2 * (lane % kQuad));
#pragma unroll
      for (int part = 0; part < kHSplit; part++)
        *reinterpret_cast<uint16_t*>(smem_d + part * kMmaM * kBlockK + at) = q[part];
    }
  }
  fence_proxy_async_shared();
  named_barrier_sync(kBarGemm1Warpgroup + warpgroup, kWarpgroupThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (m_rows > 0)
      for (int part = 0; part < kHSplit; part++)
        bulk_store(h_tile<kHSplit>(args, tile, part) + warpgroup * kMmaM * kBlockK, smem_d + part * kMmaM * kBlockK,
                   m_rows * kBlockK);
    bulk_commit();
  }
}
