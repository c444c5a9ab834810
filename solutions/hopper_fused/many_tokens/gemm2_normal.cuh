// gemm2_normal: a gemm2 tile of 65 to 128 rows by 256 output columns.
#pragma once
#include <cstdint>

#include "barrier.cuh"
#include "gemm2_epilogue.cuh"
#include "normal_mainloop.cuh"
#include "numerics.cuh"
#include "smem_addr.cuh"
#include "wgmma.cuh"

// bound: of the sums' absolute values, for each weight block and row of the thread; with hi and lo only.
template <int kHSplit>
__device__ __forceinline__ void gemm2_normal_mainloop(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, float (&sum)[kNormalSums],
    float (&bound)[2][2], const float* w_scale, int warpgroup) {
  static_assert(2 * kNumKBlocks2 <= kWarp, "one scale of two weight blocks in each lane");
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const float scales = __ldg(w_scale + threadIdx.x % kWarp % (2 * kNumKBlocks2));  // a lane: [weight block][K block]
  const auto read = [&](int k, int stage) {
    const float h0 = smem.a_scale[stage][row], h1 = smem.a_scale[stage][row + 8];
    const float low = __shfl_sync(kFullWarp, scales, k), high = __shfl_sync(kFullWarp, scales, kNumKBlocks2 + k);
    const NormalScales found = {{{h0 * low, h1 * low}, {h0 * high, h1 * high}}};
    if constexpr (kHSplit == 2) {
#pragma unroll
      for (int i = 0; i < 4; i++) bound[i / 2][i % 2] += fabsf(found.of[i / 2][i % 2]) * kKBlockBound;
    }
    return found;
  };
  normal_mainloop<kHSplit, kNumKBlocks2, false>(smem, pipe, sum, warpgroup, read, [](int j) { return j / 16; });
}

// y, y_scale: of the tile's first row and column.
template <int kHSplit>
__device__ __forceinline__ void gemm2_normal(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, const WorkTile& tile, const float* w_scale,
    uint16_t* y, float* y_scale, int y_columns, int warpgroup) {
  float sum[kNormalSums], bound[2][2] = {};
  gemm2_normal_mainloop<kHSplit>(smem, pipe, sum, bound, w_scale, warpgroup);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int m_rows = tile.m_rows - warpgroup * kMmaM;  // of this warpgroup; may be more than 64, or not positive
  uint8_t* smem_d = smem.d[warpgroup];                 // [2 times 64 columns][64 rows][128 bytes], swizzled
#pragma unroll
  for (int half = 0; half < 2; half++) {  // 128 columns at a time
    const float* half_sum = sum + kNormalAccum * half;
    float inverse[2] = {1.0f, 1.0f};  // of the scales of rows lane / 4 and lane / 4 + 8 of the warp
#pragma unroll
    for (int r = 0; kHSplit == 2 && r < 2; r++) {
      const float scale = fp16_scale(bound[half][r]);
      const int row = warp * kWarpRows + lane / kQuad + 8 * r;
      if (lane % kQuad == 0 && row < m_rows)
        y_scale[(size_t)(warpgroup * kMmaM + row) * (y_columns / kBlockK) + half] = scale;
      inverse[r] = inverse_power_of_two(scale);
    }
    named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
#pragma unroll
    for (int j = 0; j < kNormalN / 8; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = smem_d + j / 8 * kMmaM * kBlockK + (2 * warp + lane / 8 % 2) * kAtomBytes +
                          swizzle_128b(lane % 8, (j % 8 + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pack_y<kHSplit>(half_sum[4 * j] * inverse[0], half_sum[4 * j + 1] * inverse[0])),
                   "r"(pack_y<kHSplit>(half_sum[4 * j + 2] * inverse[1], half_sum[4 * j + 3] * inverse[1])),
                   "r"(pack_y<kHSplit>(half_sum[4 * j + 4] * inverse[0], half_sum[4 * j + 5] * inverse[0])),
                   "r"(pack_y<kHSplit>(half_sum[4 * j + 6] * inverse[1], half_sum[4 * j + 7] * inverse[1]))
                   : "memory");
    }
    named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
#pragma unroll
    for (int c = 0; c < 2; c++)
      store_rows<kMmaM>(smem_d + c * kMmaM * kBlockK,
                        y + (size_t)warpgroup * kMmaM * y_columns + half * kNormalN + c * 64, y_columns, m_rows);
  }
}
