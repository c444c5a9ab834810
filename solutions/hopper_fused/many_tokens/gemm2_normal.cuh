// many_gemm2_wide: a tile of up to 128 rows by 256 output columns.
#pragma once
#include "normal_tile.cuh"
#include "y_store.cuh"

template <int kTerms>
__device__ __forceinline__ void gemm2_normal_mainloop(
    Gemm2Smem<kTerms>& s, PipelineState<Gemm2Smem<kTerms>::kStages>& pipe, float (&acc)[kNormalSums], const float* w_scale,
    int warpgroup) {
  const int row = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  const float scales = __ldg(w_scale + threadIdx.x % 32 % (2 * kKSteps2));  // of two weight blocks, one a K step, spread over the lanes
  const auto read = [&](int k, int stage) {
    const float h0 = s.scales[stage][row], h1 = s.scales[stage][row + 8];
    const float low = __shfl_sync(0xffffffffu, scales, k), high = __shfl_sync(0xffffffffu, scales, kKSteps2 + k);
    return NormalScales{{{h0 * low, h1 * low}, {h0 * high, h1 * high}}};
  };
  normal_mainloop<kTerms, kKSteps2, false>(s, pipe, acc, warpgroup, read, [](int j) { return j / 16; });
}

// y: of the tile's first row and column.
template <int kTerms>
__device__ __forceinline__ void gemm2_normal(
    Gemm2Smem<kTerms>& s, PipelineState<Gemm2Smem<kTerms>::kStages>& pipe, const WorkTile& tile, const float* w_scale, uint16_t* y,
    int y_columns, int warpgroup) {
  float acc[kNormalSums];
  gemm2_normal_mainloop<kTerms>(s, pipe, acc, w_scale, warpgroup);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int here = tile.n - warpgroup * 64;  // rows of this warpgroup, if there are as many
  uint8_t* staged = s.staged[warpgroup];     // [2 times 64 columns][64 rows][128]
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float* sum = acc + 64 * half;
    named_barrier_sync(kBarGroup + warpgroup, kWarpgroupThreads);
#pragma unroll
    for (int j = 0; j < 16; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = staged + j / 8 * 64 * kBlockK + (2 * warp + lane / 8 % 2) * kAtomBytes +
                          swizzle_128b(lane % 8, (j % 8 + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pack_bf16(sum[4 * j], sum[4 * j + 1])),
                   "r"(pack_bf16(sum[4 * j + 2], sum[4 * j + 3])),
                   "r"(pack_bf16(sum[4 * j + 4], sum[4 * j + 5])),
                   "r"(pack_bf16(sum[4 * j + 6], sum[4 * j + 7]))
                   : "memory");
    }
    named_barrier_sync(kBarGroup + warpgroup, kWarpgroupThreads);
#pragma unroll
    for (int c = 0; c < 2; c++)
      store_rows<64>(staged + c * 64 * kBlockK, y + (size_t)warpgroup * 64 * y_columns + half * 128 + c * 64, y_columns, here);
  }
}
