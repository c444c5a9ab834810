// grouped_gemm: what both grouped GEMMs share: shared memory, barriers, and wgmma over a K block.
//
// A[rows, K] is x or h, W[weight rows, K] W13 or W2, D the tile's result: h or y.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "hopper_fused/sizes.cuh"
#include "hopper_fused/many_tokens/grouped_config.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// ---- shared memory ----

// kParts: the FP8 terms that A is a sum of. x has one; h has two where it is split in hi and lo.
template <int kParts>
struct GemmSmem {
  static constexpr int kStages = Grouped::stages(kParts);
  using Pipeline = PipelineState<kStages>;

  uint8_t w[kStages][Grouped::kWTileBytes];
  // rows beyond the tile's are not loaded, and their results not stored
  uint8_t a[kStages][kParts][Grouped::kATileBytes];
  // the tile's result before its store. First index: the warpgroup, but the part (hi or lo) in gemm1's swap-AB tiles
  uint8_t d[2][Grouped::kATileBytes];
  float a_scale[kStages][Grouped::kBlockM];
  float w_scale[kStages][2 * Grouped::kWScaleBlocks];  // gemm1: [half of W13][K block among its kWScaleBlocks]
  // mbarriers, see grouped_gemm1.cu and grouped_gemm2.cu
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[Grouped::kSchedulerStages];
  int tile_entry[Grouped::kSchedulerStages][2];  // gemm2: queue entries that DynamicTileScheduler has sent
};

// ---- barriers ----

// The prologue of both GEMMs. When it returns, the barriers of both CTAs of the cluster are initialised.
// full_arrivals: how many threads arrive at a full barrier.
template <class Smem>
__device__ __forceinline__ Smem& init_gemm(int full_arrivals) {
  static_assert(sizeof(Smem) <= kSmemLimit, "a CTA has 227 KB of shared memory");
  extern __shared__ __align__(1024) uint8_t gemm_smem[];
  Smem& smem = *reinterpret_cast<Smem*>(gemm_smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Smem::kStages; i++) {
      smem.full[i].init(full_arrivals);
      smem.empty[i].init(Grouped::kClusterCtas * kConsumerWarps);
    }
    for (int i = 0; i < Grouped::kSchedulerStages; i++) smem.tile_full[i].init(1);
    fence_barrier_init();
  }
  __syncthreads();
  cluster_sync();
  return smem;
}

// Releases a stage to the producers of both CTAs: with multicast each of them fills the stage in both CTAs, and without
// it nothing changes, so that the number of arrivals is always the same. In each warp one lane arrives for each CTA.
// read: what the thread has read of the stage and may not have used yet, see barrier.cuh.
template <class Smem, class... Read>
__device__ __forceinline__ void cluster_consumer_release(Smem& smem, int stage, const Read&... read) {
  release_stage_to_cluster<Grouped::kClusterCtas>(smem.empty[stage], read...);
}

// ---- consumer ----

// accum (+)= A . B^T over one K block, 64 x N. `first`: accum is overwritten.
template <int N>
__device__ __forceinline__ void mma_k_block(float (&accum)[N / 2], uint64_t desc_a, uint64_t desc_b, bool first) {
#pragma unroll
  for (int i = 0; i < kMmasPerStep; i++)
    Wgmma<N>::mma(accum, desc_a + kDescMmaK * i, desc_b + kDescMmaK * i, i > 0 || !first);
}

template <int N>
struct RowCount {
  static constexpr int count = N;
};
// Calls f with a swap-AB tile's number of rows, which is wgmma's N, as a compile-time constant.
template <class F>
__device__ __forceinline__ void dispatch_swap_ab_rows(int m_rows, F f) {
  static_assert(Grouped::kRowAlign == 16 && Grouped::kSwapAbRows == 64, "one case for each N");
  switch (m_rows / Grouped::kRowAlign) {
    case 1: return f(RowCount<16>());
    case 2: return f(RowCount<32>());
    case 3: return f(RowCount<48>());
    default: return f(RowCount<64>());
  }
}

}  // namespace hopper_fused
