// gemm2_swap_ab: a gemm2 tile of up to 64 rows. wgmma's M is weight rows: a warpgroup has 128 output columns, as two
// m64, one after the other.
#pragma once
#include <cstdint>

#include "barrier.cuh"
#include "gemm2_epilogue.cuh"
#include "grouped_gemm.cuh"
#include "numerics.cuh"
#include "smem_addr.cuh"
#include "wgmma.cuh"

// hi and lo have one scale, hence one accumulator. bound: of the sums' absolute values, for each row of the thread;
// with hi and lo only.
template <int N, int kHSplit>
__device__ __forceinline__ void gemm2_swap_ab_mainloop(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, float (&sum)[2][N / 2],
    float2 (&bound)[N / 8], const float* w_scale, int warpgroup) {
  const float scales = __ldg(w_scale + threadIdx.x % kWarp % kNumKBlocks2);  // one per K block, over the lanes
  float accum[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[m][i] = 0.0f;
  for (int k = 0; k < kNumKBlocks2; k++, pipe.advance()) {
    const int stage = pipe.stage;
    mbar_wait(&smem.full[stage], pipe.phase);
    const float scale = __shfl_sync(kFullWarp, scales, k);
    // All scales are in registers before the stage is released: a later read might find those of another K block.
    float2 h[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      h[j] = *reinterpret_cast<const float2*>(smem.a_scale[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
    if constexpr (kHSplit == 2) {
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        bound[j].x += fabsf(h[j].x * scale) * kKBlockBound;
        bound[j].y += fabsf(h[j].y * scale) * kKBlockBound;
      }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
      warpgroup_arrive();
#pragma unroll
      for (int part = 0; part < kHSplit; part++)
        mma_k_block<N>(accum, make_smem_desc(smem.w[stage] + (2 * warpgroup + m) * kMmaM * kBlockK, kAtomBytes),
                       make_smem_desc(smem.a[stage][part], kAtomBytes), part == 0);
      warpgroup_commit_batch();
      warpgroup_wait<0>();
      warpgroup_fence_operand(accum);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float s0 = h[j].x * scale, s1 = h[j].y * scale;
        sum[m][4 * j + 0] += accum[4 * j + 0] * s0;
        sum[m][4 * j + 1] += accum[4 * j + 1] * s1;
        sum[m][4 * j + 2] += accum[4 * j + 2] * s0;
        sum[m][4 * j + 3] += accum[4 * j + 3] * s1;
      }
    }
    cluster_consumer_release(smem, stage);
  }
}

// y, y_scale: of the tile's first row and column. stmatrix transposes 64 columns at a time.
template <int kHSplit>
__device__ __forceinline__ void gemm2_swap_ab(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, const WorkTile& tile, const float* w_scale,
    uint16_t* y, float* y_scale, int y_columns, int warpgroup) {
  dispatch_swap_ab_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    float2 bound[N / 8] = {};
    gemm2_swap_ab_mainloop<N, kHSplit>(smem, pipe, sum, bound, w_scale + warpgroup * kNumKBlocks2, warpgroup);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
    float2 inverse[N / 8];  // of the scales of rows 8 j + 2 (lane % 4) and the next one
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      inverse[j] = {1.0f, 1.0f};
      if constexpr (kHSplit == 2) {
        const float2 scale = {fp16_scale(bound[j].x), fp16_scale(bound[j].y)};
        if (warp == 0 && lane < kQuad) {
          float* to = y_scale + (size_t)(8 * j + 2 * lane) * (y_columns / kBlockK) + warpgroup;
          to[0] = scale.x;
          to[y_columns / kBlockK] = scale.y;
        }
        inverse[j] = {inverse_power_of_two(scale.x), inverse_power_of_two(scale.y)};
      }
    }
    uint8_t* smem_d = smem.d[warpgroup];
#pragma unroll
    for (int m = 0; m < 2; m++) {
      named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
#pragma unroll
      for (int j = 0; j < N / 8; j += 2) {
        const uint8_t* at =
            smem_d + (j + lane / 16) * kAtomBytes + swizzle_128b(lane % 8, (2 * warp + lane / 8 % 2) * 16);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                     "r"(pack_y<kHSplit>(sum[m][4 * j] * inverse[j].x, sum[m][4 * j + 1] * inverse[j].y)),
                     "r"(pack_y<kHSplit>(sum[m][4 * j + 2] * inverse[j].x, sum[m][4 * j + 3] * inverse[j].y)),
                     "r"(pack_y<kHSplit>(sum[m][4 * j + 4] * inverse[j + 1].x, sum[m][4 * j + 5] * inverse[j + 1].y)),
                     "r"(pack_y<kHSplit>(sum[m][4 * j + 6] * inverse[j + 1].x, sum[m][4 * j + 7] * inverse[j + 1].y))
                     : "memory");
      }
      named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
      store_rows<N>(smem_d, y + warpgroup * 128 + m * kMmaM, y_columns, N);
    }
  });
}
