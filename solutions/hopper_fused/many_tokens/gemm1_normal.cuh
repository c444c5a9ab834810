// gemm1_normal: a gemm1 tile of 65 to 128 rows. A thread scales two rows. The four lanes of a quad have a row's 128
// columns of h between them, so a row's maximum needs no shared memory and the warpgroups do not wait for each other.
#pragma once
#include "barrier.cuh"
#include "epilogue.cuh"
#include "normal_tile.cuh"
#include "numerics.cuh"
#include "pipeline.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

__device__ __forceinline__ void gemm1_normal_mainloop(
    Gemm1Smem& s, PipelineState<Gemm1Smem::kStages>& pipe, float (&acc)[kNormalSums], int warpgroup) {
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const auto read = [&](int k, int stage) {
    const float x0 = s.scales[stage][row], x1 = s.scales[stage][row + 8];
    const float first = s.w_scales[stage][k % kScaleSteps], second = s.w_scales[stage][kScaleSteps + k % kScaleSteps];
    return NormalScales{{{x0 * first, x1 * first}, {x0 * second, x1 * second}}};
  };
  // weight rows are interleaved: 8 of the first half, 8 of the second
  normal_mainloop<1, kNumKBlocks1, true>(s, pipe, acc, warpgroup, read, [](int j) { return j % 2; });
}

template <int kHSplit>
__device__ __forceinline__ void gemm1_normal(
    Gemm1Smem& s, const ManyArgs& args, PipelineState<Gemm1Smem::kStages>& pipe, const WorkTile& tile, int warpgroup) {
  static_assert(kHSplit * kMmaM * kBlockK <= sizeof(s.staged[0]), "a warpgroup's h fits into its staging buffer");
  const int lane = threadIdx.x % kWarp, in_warpgroup = threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + lane / kQuad;
  const int first_row = tile.first_row, rows = tile.rows;
  const int own_rows = min(kMmaM, tile.n - warpgroup * kMmaM);  // of this warpgroup; not positive if it has none
  const int warpgroup_row = first_row + tile.first + warpgroup * kMmaM;
  float weight[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    weight[r] = in_warpgroup + 8 * r < own_rows ? __ldg(args.row_weight + warpgroup_row + in_warpgroup + 8 * r) : 0.0f;
  float acc[kNormalSums];
  gemm1_normal_mainloop(s, pipe, acc, warpgroup);

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {  // rows lane / 4 and lane / 4 + 8 of the warp
    float amax = 0.0f;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8)
#pragma unroll
      for (int p = 0; p < 2; p++) {
        acc[i + p] = swiglu_of_halves(acc[i + p], acc[i + 4 + p]);
        amax = fmaxf(amax, fabsf(acc[i + p]));
      }
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 2));
    inverse[r] = 0.0f;
    const int row = in_warpgroup + 8 * r;
    if (lane % kQuad == 0 && row < own_rows)
      inverse[r] = store_scale(
          args.h_scale + (size_t)first_row * kNumKBlocks2 + tile.column * rows + tile.first + warpgroup * kMmaM + row, amax,
          weight[r]);
    inverse[r] = __shfl_sync(kFullWarp, inverse[r], lane & ~(kQuad - 1));
  }
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the previous tile's h has been read from `staged`
  named_barrier_sync(kBarGemm1Warpgroup + warpgroup, kWarpgroupThreads);
  uint8_t* staged = s.staged[warpgroup];  // [terms][64 rows][128]
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = in_warpgroup + 8 * r;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8) {
      uint16_t q[kHSplit];
      quantize_fp8<kHSplit>(q, acc[i] * inverse[r], acc[i + 1] * inverse[r]);
      const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, i / 8 * 8 + 2 * (lane % kQuad));
#pragma unroll
      for (int term = 0; term < kHSplit; term++)
        *reinterpret_cast<uint16_t*>(staged + term * kMmaM * kBlockK + at) = q[term];
    }
  }
  fence_proxy_async_shared();
  named_barrier_sync(kBarGemm1Warpgroup + warpgroup, kWarpgroupThreads);
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (own_rows > 0)
      for (int term = 0; term < kHSplit; term++)
        bulk_store(h_tile<kHSplit>(args, tile, first_row, rows, term) + warpgroup * kMmaM * kBlockK,
                   staged + term * kMmaM * kBlockK, own_rows * kBlockK);
    bulk_commit();
  }
}
