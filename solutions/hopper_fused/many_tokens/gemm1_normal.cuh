// many_gemm1_wide: a tile of up to 128 rows. A thread's scales are those of two rows, and the four lanes of a quad have
// a row's 128 columns of h between them, so that the warpgroups need each other for nothing.
#pragma once
#include "h_store.cuh"
#include "normal_tile.cuh"

__device__ __forceinline__ void gemm1_normal_mainloop(
    Gemm1Smem& s, PipelineState<Gemm1Smem::kStages>& pipe, float (&acc)[kNormalSums], int warpgroup) {
  const int row = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  const auto read = [&](int k, int stage) {
    const float x0 = s.scales[stage][row], x1 = s.scales[stage][row + 8];
    const float up = s.w_scales[stage][k % 4], gate = s.w_scales[stage][4 + k % 4];
    return NormalScales{{{x0 * up, x1 * up}, {x0 * gate, x1 * gate}}};
  };
  normal_mainloop<1, kKSteps1, true>(s, pipe, acc, warpgroup, read, [](int j) { return j % 2; });  // 8 rows of up, 8 of gate, in turn
}

template <int kTerms>
__device__ __forceinline__ void gemm1_normal(
    Gemm1Smem& s, const ManyArgs& args, PipelineState<Gemm1Smem::kStages>& pipe, const WorkTile& tile, int warpgroup) {
  const int lane = threadIdx.x % 32, in_group = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const int first_row = tile.first_row, rows = tile.rows;
  const int here = min(64, tile.n - warpgroup * 64);  // rows of this warpgroup; may be none
  const int row_of_group = first_row + tile.first + warpgroup * 64;
  float weight[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    weight[r] = in_group + 8 * r < here ? __ldg(args.row_weight + row_of_group + in_group + 8 * r) : 0.0f;
  float acc[kNormalSums];
  gemm1_normal_mainloop(s, pipe, acc, warpgroup);

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {  // rows lane / 4 and that + 8
    float most = 0.0f;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8)
#pragma unroll
      for (int p = 0; p < 2; p++) {
        acc[i + p] = swiglu(acc[i + p], acc[i + 4 + p]);
        most = fmaxf(most, fabsf(acc[i + p]));
      }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    inverse[r] = 0.0f;
    const int row = in_group + 8 * r;
    if (lane % 4 == 0 && row < here)
      inverse[r] = store_scale(
          args.h_scale + (size_t)first_row * kKSteps2 + tile.column * rows + tile.first + warpgroup * 64 + row, most, weight[r]);
    inverse[r] = __shfl_sync(0xffffffffu, inverse[r], lane & ~3);
  }
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the last tile's h has left
  named_barrier_sync(kBarGroup + warpgroup, kWarpgroupThreads);
  uint8_t* staged = s.staged[warpgroup];  // [terms][64 rows][128]
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = in_group + 8 * r;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8) {
      uint16_t q[kTerms];
      quantize_fp8<kTerms>(q, acc[i] * inverse[r], acc[i + 1] * inverse[r]);
      const int at = row / 8 * kAtomBytes + swizzle_128b(row % 8, i / 8 * 8 + 2 * (lane % 4));
#pragma unroll
      for (int term = 0; term < kTerms; term++) *reinterpret_cast<uint16_t*>(staged + term * 64 * kBlockK + at) = q[term];
    }
  }
  fence_proxy_async_shared();
  named_barrier_sync(kBarGroup + warpgroup, kWarpgroupThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (here > 0)
      for (int term = 0; term < kTerms; term++)
        bulk_store(h_tile<kTerms>(args, tile, first_row, rows, term) + warpgroup * 64 * kBlockK, staged + term * 64 * kBlockK,
                   here * kBlockK);
    bulk_commit();
  }
}
