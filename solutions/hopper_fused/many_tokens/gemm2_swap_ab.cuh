// gemm2_swap_ab: a gemm2 tile of up to 64 rows. wgmma's M is weight rows: a warpgroup has 128 output columns, as two
// m64, one after the other.
#pragma once
#include "barrier.cuh"
#include "epilogue.cuh"
#include "numerics.cuh"
#include "pipeline.cuh"
#include "smem_addr.cuh"
#include "wgmma.cuh"

// Both terms have one scale, hence one accumulator. bound: of the sums' absolute values, for each row of the thread;
// with two terms only.
template <int N, int kHSplit>
__device__ __forceinline__ void gemm2_swap_ab_mainloop(
    Gemm2Smem<kHSplit>& s, PipelineState<Gemm2Smem<kHSplit>::kStages>& pipe, float (&acc)[2][N / 2],
    float2 (&bound)[N / 8], const float* w_scale, int warpgroup) {
  const float scales = __ldg(w_scale + threadIdx.x % kWarp % kNumKBlocks2);  // one per K step, over the lanes
  float raw[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[m][i] = 0.0f;
  for (int k = 0; k < kNumKBlocks2; k++, pipe.advance()) {
    const int stage = pipe.stage;
    mbar_wait(&s.full[stage], pipe.phase);
    const float scale = __shfl_sync(kFullWarp, scales, k);
    // All scales are in registers before the stage is released: a later read might find those of another K step.
    float2 h[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      h[j] = *reinterpret_cast<const float2*>(s.scales[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
    if constexpr (kHSplit == 2) {
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        bound[j].x += fabsf(h[j].x * scale) * kStepBound;
        bound[j].y += fabsf(h[j].y * scale) * kStepBound;
      }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
      warpgroup_arrive();
#pragma unroll
      for (int term = 0; term < kHSplit; term++)
        mma_k_step<N>(raw, make_smem_desc(s.w[stage] + (2 * warpgroup + m) * kMmaM * kBlockK, kAtomBytes),
                      make_smem_desc(s.rows[stage][term], kAtomBytes), term == 0);
      warpgroup_commit_batch();
      warpgroup_wait<0>();
      warpgroup_fence_operand(raw);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float s0 = h[j].x * scale, s1 = h[j].y * scale;
        acc[m][4 * j + 0] += raw[4 * j + 0] * s0;
        acc[m][4 * j + 1] += raw[4 * j + 1] * s1;
        acc[m][4 * j + 2] += raw[4 * j + 2] * s0;
        acc[m][4 * j + 3] += raw[4 * j + 3] * s1;
      }
    }
    cluster_consumer_release(s, stage);
  }
}

// y, y_scale: of the tile's first row and column. stmatrix transposes 64 columns at a time.
template <int kHSplit>
__device__ __forceinline__ void gemm2_swap_ab(
    Gemm2Smem<kHSplit>& s, PipelineState<Gemm2Smem<kHSplit>::kStages>& pipe, const WorkTile& tile, const float* w_scale,
    uint16_t* y, float* y_scale, int y_columns, int warpgroup) {
  dispatch_swap_ab_rows(tile.n, [&](auto tile_rows) {
    constexpr int n = decltype(tile_rows)::count;
    float acc[2][n / 2];
    float2 bound[n / 8] = {};
    gemm2_swap_ab_mainloop<n, kHSplit>(s, pipe, acc, bound, w_scale + warpgroup * kNumKBlocks2, warpgroup);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
    float2 inverse[n / 8];  // of the scales of rows 8 j + 2 (lane % 4) and the next one
#pragma unroll
    for (int j = 0; j < n / 8; j++) {
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
    uint8_t* staged = s.staged[warpgroup];
#pragma unroll
    for (int m = 0; m < 2; m++) {
      named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
#pragma unroll
      for (int j = 0; j < n / 8; j += 2) {
        const uint8_t* at =
            staged + (j + lane / 16) * kAtomBytes + swizzle_128b(lane % 8, (2 * warp + lane / 8 % 2) * 16);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                     "r"(pack_y<kHSplit>(acc[m][4 * j] * inverse[j].x, acc[m][4 * j + 1] * inverse[j].y)),
                     "r"(pack_y<kHSplit>(acc[m][4 * j + 2] * inverse[j].x, acc[m][4 * j + 3] * inverse[j].y)),
                     "r"(pack_y<kHSplit>(acc[m][4 * j + 4] * inverse[j + 1].x, acc[m][4 * j + 5] * inverse[j + 1].y)),
                     "r"(pack_y<kHSplit>(acc[m][4 * j + 6] * inverse[j + 1].x, acc[m][4 * j + 7] * inverse[j + 1].y))
                     : "memory");
      }
      named_barrier_sync(kBarGemm2Warpgroup + warpgroup, kWarpgroupThreads);
      store_rows<n>(staged, y + warpgroup * 128 + m * kMmaM, y_columns, n);
    }
  });
}
