// grouped_gemm1: x W13^T of all rows, h = silu(gate) * up, h in FP8: one part, or hi and lo (kHSplit).
// Clusters of two CTAs, one CTA per SM, static tile scheduler, a pipeline of four K blocks.
//
//   warps    for each of the CTA's tiles (tile_scheduler.cuh)
//   8 - 11   producers, K block by K block: thread 0 loads W13 by TMA (all of the tile's, or half by multicast) and the
//            scales of x by bulk copy; all threads gather x from the tokens' rows by cp.async, swizzled on the way; two
//            of them load the scales of W13 by cp.async
//   0 - 7    consumers, two warpgroups (gemm1_tile.cuh): wgmma; then SwiGLU and FP8 with one scale for each row and the
//            tile's 128 columns of h; h through smem.d to memory by bulk store
//
// TMA interleaves eight weight rows of W13's first half, up or gate (interface.cuh), with eight of the second, so a
// thread has both sums of a column of h and SwiGLU stays in registers.
//
//   mbarrier      arrivals     who arrives                        who waits      what it protects
//   full[stage]   129, bytes   producer thread 0; all producer    warps 0 - 7    w, a, their scales are loaded. Bytes:
//                              threads as their cp.asyncs end                    W13 by both CTAs, scales of x
//   empty[stage]  16           a lane of each consumer warp of    warps 8 - 11   the stage may be overwritten in both
//                              both CTAs                                         CTAs: a multicast writes both
//   Parities are those of pipeline.cuh.
//
//   named barrier           threads   who arrives and waits   what it protects, in order of use
//   Gemm1WarpgroupBarrier   128       warpgroup w             normal tile: smem.d is free; it is written
//   Gemm1ConsumersBarrier   256       warps 0 - 7             swap-AB tile: smem.d is free; row maxima are written;
//                                                             inverse scales are written; read; smem.d is written
//
//   global counter            who arrives                         who waits       what it protects
//   h_ready_except_last_wave  warpgroups, before their last tile  gemm2's warp 8  h of tiles before_last_wave
//   h_ready                   warpgroups, after their last tile   gemm2's warp 8  h of the others
//
// It cannot deadlock: the CTAs of a cluster are resident together and go through equally many K blocks
// (tile_scheduler.cuh), and none waits for another cluster.
#include <cuda.h>

#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "hopper_fused/many_tokens/gather_x.cuh"
#include "hopper_fused/many_tokens/gemm1_tile.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "common/cuda/layer/weights.cuh"

namespace hopper_fused {

// ---- sizes ----

constexpr int kWGroups = Grouped::kBlockN / (2 * kAtomRows);  // groups of 8 rows of each half of W13 in a tile
static_assert(kWGroups % 2 == 0, "each CTA loads half of the groups");

// ---- producer ----

__device__ __forceinline__ void cp_async_w_scales(float* smem, const float* w_scale) {
  if constexpr (Grouped::kWScaleBlocks == 4) cp_async_16(smem, w_scale);
  else cp_async_4(smem, w_scale);
}

__device__ __forceinline__ int read_singles(const GroupedArgs& args) {
  return Grouped::kOddNBlocks ? __ldcg(&args.counters->singles) : 0;
}

// For all producer threads, which copy x; thread 0 also requests weights and scales. TMA's coordinates: K, row of 8,
// half, group of 8, expert.
__device__ __forceinline__ void load_gemm1(
    Gemm1Smem& smem, const CUtensorMap& map, const GroupedArgs& args, const TileQueues& queues, int rank) {
  const uint64_t weight_policy = queues.experts <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t scale_policy = l2_evict_last();
  const int thread = threadIdx.x % kProducerThreads, row = thread / kVectorsPerRow, vector = thread % kVectorsPerRow;
  const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, vector * 16);
  if (thread == 0) fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
  Gemm1Smem::Pipeline pipe;
  WorkTile tile;
  StaticTileScheduler scheduler(args.queue1, queues, args.clusters, read_singles(args));
  while (scheduler.get_next_tile(tile, rank)) {
    const float* x_scale = args.row_x_scale + (size_t)tile.expert_first * kNumKBlocks1 + tile.m_first;
    const int n_block = Grouped::kNumNBlocks1 == kNumKBlocks2 ? tile.n_block : min(tile.n_block, kNumKBlocks2 - 1);
    const float* w_scale =  // for threads 0 and 1: of the first and of the second half of W13
        args.w1_scale + (size_t)((tile.expert * 2 + thread) * (kIntermediate / kBlockK) + n_block) * kNumKBlocks1;
    unsigned x_offset[kRowsPerThread];
    find_rows_of_x(x_offset, args, tile, row, vector);
    for (int k = 0; k < kNumKBlocks1; k++, pipe.advance()) {
      const int stage = pipe.stage;
      Barrier& full = smem.full[stage];
      smem.empty[stage].wait(pipe.phase ^ 1);
      if (thread == 0) {
        fence_proxy_async_shared();  // the scales of x that were here were read by generic loads
        // with multicast half of W comes by the other CTA
        full.arrive_and_expect(Grouped::kWTileBytes + tile.m_rows * 4);
        if (tile.multicast_w) {
          tma_load_5d_multicast(smem.w[stage] + rank * Grouped::kWBoxBytes, &map, full, k * kBlockK, 0, 0,
                                tile.n_block * kWGroups + rank * (kWGroups / 2), tile.expert, Grouped::kAllCtas,
                                weight_policy);
        } else {
          for (int box = 0; box < 2; box++)
            tma_load_5d(smem.w[stage] + box * Grouped::kWBoxBytes, &map, full, k * kBlockK, 0, 0,
                        tile.n_block * kWGroups + box * (kWGroups / 2), tile.expert, weight_policy);
        }
        bulk_load(smem.a_scale[stage], x_scale + (size_t)k * tile.expert_rows, tile.m_rows * 4, full, scale_policy);
      }
      __syncwarp();
      if (thread < 2)  // kWScaleBlocks' scales in every stage, as each is released by itself
        cp_async_w_scales(smem.w_scale[stage] + Grouped::kWScaleBlocks * thread,
                          w_scale + k / Grouped::kWScaleBlocks * Grouped::kWScaleBlocks);
      cp_async_rows_of_x(smem.a[stage][0] + at, args.x + k * kBlockK, x_offset);
      cp_async_mbar_arrive(full);
    }
  }
}

// ---- kernel ----

template <int kHSplit>
__global__ void __launch_bounds__(Grouped::kThreads, 1)
    grouped_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ GroupedArgs args) {
  if (threadIdx.x == 0) prefetch_tma_descriptor(&map);
  Gemm1Smem& smem = init_gemm<Gemm1Smem>(1 + kProducerThreads);
  pdl_wait();
  pdl_launch_dependents();
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (blockIdx.x == 0 && threadIdx.x == 0) args.counters->grid_barrier = 0;  // for the next layer's route_permute
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<Grouped::kProducerRegisters>();
    load_gemm1(smem, map, args, queues, rank);
  } else {
    warpgroup_reg_alloc<Grouped::kConsumerRegisters>();
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    Gemm1Smem::Pipeline pipe;
    WorkTile tile;
    StaticTileScheduler scheduler(args.queue1, queues, args.clusters, read_singles(args));
    if (!scheduler.has_next()) signal_h_ready(&args.counters->h_ready_except_last_wave);  // a cluster without a tile
    while (scheduler.get_next_tile(tile, rank)) {
      if (!scheduler.has_next()) signal_h_ready(&args.counters->h_ready_except_last_wave);
      if (tile.normal) {
        gemm1_normal<kHSplit>(smem, args, tile, warpgroup, [&](float(&sum)[kNormalSums]) {
          gemm1_normal_mainloop(smem, pipe, sum, warpgroup);
        });
      } else {
        gemm1_swap_ab<kHSplit>(smem, args, pipe, tile, warpgroup);
      }
    }
    signal_h_ready(&args.counters->h_ready);
  }
  __syncwarp();
  cluster_sync();  // the other CTA still arrives at this one's barriers
}

// ---- host ----

// Templates, so that no layer with MXFP4 weights compiles the kernels.
template <bool kUsed>
static cudaError_t prepare() {
  if constexpr (kUsed) {
    for (auto kernel : {grouped_gemm1<1>, grouped_gemm1<2>})
      if (const cudaError_t error =
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gemm1Smem)))
        return error;
  }
  return cudaSuccess;
}
template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  if constexpr (kUsed)
    return launch_with_pdl(h_split == 1 ? grouped_gemm1<1> : grouped_gemm1<2>, Grouped::kClusterCtas * args.clusters,
                           Grouped::kThreads, clusters_of(Grouped::kClusterCtas), sizeof(Gemm1Smem), stream, w1, args);
  return cudaErrorNotSupported;
}

cudaError_t prepare_grouped_gemm1() { return prepare<!kMxfp4Weights>(); }
cudaError_t launch_grouped_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  return launch<!kMxfp4Weights>(args, w1, h_split, stream);
}

}  // namespace hopper_fused
