// gemm1_normal_tile: gemm1_tile.cuh's normal tile for MXFP4 weights: h in their order of K (k_order.cuh).
#pragma once
#include <cstdint>

#include "hopper_fused/many_tokens/gemm1_tile.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/normal_mainloop.cuh"

namespace hopper_fused {

// gemm1_normal with another main loop, and h in MXFP4's order of K. mainloop(sum): leaves the thread's sums.
template <int kHSplit, class Smem, class Mainloop>
__device__ __forceinline__ void gemm1_normal_tile(
    Smem& smem, const GroupedArgs& args, const WorkTile& tile, int warpgroup, Mainloop mainloop) {
  static_assert(kHSplit * kMmaM * kBlockK <= sizeof(smem.d[0]), "a warpgroup's h fits into its part of smem.d");
  const int lane = threadIdx.x % kWarp;
  const int in_warpgroup = threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + lane / kQuad;  // this thread's first row
  const int m_rows = min(kMmaM, tile.m_rows - warpgroup * kMmaM);  // of this warpgroup; the tile has more than 64
  const int first_row = tile.expert_first + tile.m_first + warpgroup * kMmaM;
  float weight[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    weight[r] = in_warpgroup + 8 * r < m_rows ? args.row_weight[first_row + in_warpgroup + 8 * r] : 0.0f;
  float sum[kNormalSums];
  mainloop(sum);

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {  // rows in_warpgroup and in_warpgroup + 8; sums 4 apart are a column's up and gate
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
  Gemm1WarpgroupBarrier::sync(warpgroup);
  uint8_t* smem_d = smem.d[warpgroup];  // [part][64 rows][128], swizzled
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = in_warpgroup + 8 * r;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8) {
      uint16_t q[kHSplit];
      quantise_fp8<kHSplit>(q, sum[i] * inverse[r], sum[i + 1] * inverse[r]);
      const int column = h_position(i / 8 * 8 + 2 * (lane % kQuad));
      const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, column);
#pragma unroll
      for (int part = 0; part < kHSplit; part++)
        *reinterpret_cast<uint16_t*>(smem_d + part * kMmaM * kBlockK + at) = q[part];
    }
  }
  fence_proxy_async_shared();
  Gemm1WarpgroupBarrier::sync(warpgroup);
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (m_rows > 0)
      for (int part = 0; part < kHSplit; part++)
        bulk_store(h_tile<kHSplit>(args, tile, part) + warpgroup * kMmaM * kBlockK, smem_d + part * kMmaM * kBlockK,
                   m_rows * kBlockK);
    bulk_commit();
  }
}

}  // namespace hopper_fused
