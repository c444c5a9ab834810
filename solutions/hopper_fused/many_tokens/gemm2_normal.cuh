// gemm2_normal: a gemm2 tile of 65 to 128 rows by 256 output columns.
#pragma once
#include "epilogue.cuh"
#include "normal_tile.cuh"

template <int kTerms>
__device__ __forceinline__ void gemm2_normal_mainloop(Gemm2Smem<kTerms>& s,
                                                      PipelineState<Gemm2Smem<kTerms>::kStages>& pipe,
                                                      float (&acc)[kNormalSums], const float* w_scale, int warpgroup) {
  static_assert(2 * kKSteps2 <= kWarp, "one scale of two weight blocks in each lane");
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const float scales = __ldg(w_scale + threadIdx.x % kWarp % (2 * kKSteps2));  // [weight block][K step] over the lanes
  const auto read = [&](int k, int stage) {
    const float h0 = s.scales[stage][row], h1 = s.scales[stage][row + 8];
    const float low = __shfl_sync(kFullWarp, scales, k), high = __shfl_sync(kFullWarp, scales, kKSteps2 + k);
    return NormalScales{{{h0 * low, h1 * low}, {h0 * high, h1 * high}}};
  };
  normal_mainloop<kTerms, kKSteps2, false>(s, pipe, acc, warpgroup, read, [](int j) { return j / 16; });
}

// y: of the tile's first row and column.
template <int kTerms>
__device__ __forceinline__ void gemm2_normal(
    Gemm2Smem<kTerms>& s, PipelineState<Gemm2Smem<kTerms>::kStages>& pipe, const WorkTile& tile, const float* w_scale,
    uint16_t* y, int y_columns, int warpgroup) {
  float acc[kNormalSums];
  gemm2_normal_mainloop<kTerms>(s, pipe, acc, w_scale, warpgroup);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int own_rows = tile.n - warpgroup * kMmaM;  // of this warpgroup; may be more than 64, or not positive
  uint8_t* staged = s.staged[warpgroup];  // [2 times 64 columns][64 rows][128 bytes]
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float* sum = acc + kNormalSums / 2 * half;
    named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
#pragma unroll
    for (int j = 0; j < kNormalN / 8; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = staged + j / 8 * kMmaM * kBlockK + (2 * warp + lane / 8 % 2) * kAtomBytes +
                          swizzle_128b(lane % 8, (j % 8 + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pack_bf16(sum[4 * j], sum[4 * j + 1])),
                   "r"(pack_bf16(sum[4 * j + 2], sum[4 * j + 3])),
                   "r"(pack_bf16(sum[4 * j + 4], sum[4 * j + 5])),
                   "r"(pack_bf16(sum[4 * j + 6], sum[4 * j + 7]))
                   : "memory");
    }
    named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
#pragma unroll
    for (int c = 0; c < 2; c++)
      store_rows<kMmaM>(staged + c * kMmaM * kBlockK,
                        y + (size_t)warpgroup * kMmaM * y_columns + half * kNormalN + c * 64, y_columns, own_rows);
  }
}
