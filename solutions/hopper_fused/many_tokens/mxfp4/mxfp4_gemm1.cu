// mxfp4_gemm1: grouped_gemm1 with MXFP4 weights: x W13^T of all rows, h = silu(gate) * up, h in FP8. The same tiles,
// clusters, queues and counters (grouped_gemm1.cu); all tiles are swap-AB.
//
//   warps    for each of the CTA's tiles
//   8 - 11   producers, K block by K block: thread 0 loads packed W13 by TMA (all of the tile's, or half by multicast)
//            and the scales of x by bulk copy; all threads gather x by cp.async, and with every fourth K block the
//            scales of two weight rows for four
//   0 - 7    consumers, two warpgroups: mxfp4_mainloop.cuh; then gemm1_tile.cuh's epilogue
//
//   mbarrier      arrivals     who arrives                        who waits      what it protects
//   full[stage]   129, bytes   producer thread 0; all producer    warps 0 - 7    w, a, a_scale are loaded, and w_scale
//                              threads as their cp.asyncs end                    of this K block. Bytes: W13 by both
//                                                                                CTAs, scales of x
//   empty[stage]  16           a lane of each consumer warp of    warps 8 - 11   the stage may be overwritten in both
//                              both CTAs                                         CTAs; w_scale: Mxfp4GemmSmem
//
//   named barrier           threads   who arrives and waits   what it protects, in order of use
//   kBarUnusual + w         128       warpgroup w             nothing: a vote on a K block's exponents
//   Gemm1ConsumersBarrier   256       warps 0 - 7             as in swap-AB tiles of grouped_gemm1.cu
//
// It cannot deadlock, for grouped_gemm1.cu's reasons.
#include <cuda.h>

#include <cstdint>

#include "common/cuda/host/launch.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/layer/weights.cuh"
#include "hopper_fused/many_tokens/gather_x.cuh"
#include "hopper_fused/many_tokens/gemm1_tile.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_mainloop.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"

namespace hopper_fused {

using Mxfp4Gemm1Smem = Mxfp4GemmSmem<1, kNumKBlocks1>;

constexpr int kWGroups = Grouped::kBlockN / (2 * kAtomRows);  // groups of 8 rows of each half of W13 in a tile
static_assert(2 * kProducerThreads == Grouped::kBlockN, "a thread has the scales of two weight rows of a tile");

// ---- producer ----

// For all producer threads; as load_gemm1.
__device__ __forceinline__ void load_mxfp4_gemm1(
    Mxfp4Gemm1Smem& smem, const CUtensorMap& map, const GroupedArgs& args, const TileQueues& queues, int rank) {
  using Smem = Mxfp4Gemm1Smem;
  const uint64_t weight_policy = queues.experts <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t scale_policy = l2_evict_last();
  const int thread = threadIdx.x % kProducerThreads, row = thread / kVectorsPerRow, vector = thread % kVectorsPerRow;
  const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, vector * 16);
  if (thread == 0) fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
  Smem::Pipeline pipe;
  WorkTile tile;
  for (StaticTileScheduler scheduler(args.queue1, queues, args.clusters); scheduler.get_next_tile(tile, rank);) {
    const float* x_scale = args.row_x_scale + (size_t)tile.expert_first * kNumKBlocks1 + tile.m_first;
    const uint8_t* w_scale = w13_row_scales(args, tile, thread);
    unsigned x_offset[kRowsPerThread];
    find_rows_of_x(x_offset, args, tile, row, vector);
    for (int k = 0; k < kNumKBlocks1; pipe.advance(k), k++) {
      const int stage = pipe.stage;
      Barrier& full = smem.full[stage];
      smem.empty[stage].wait(pipe.phase ^ 1);
      if (thread == 0) {
        fence_proxy_async_shared();  // weights and scales of x that were here were read by generic loads
        full.arrive_and_expect(kPackedTileBytes + tile.m_rows * 4);  // with multicast: half of W by the other CTA
        if (tile.multicast_w) {
          tma_load_5d_multicast(smem.w[stage] + rank * kPackedBoxBytes, &map, full, k * kPackedRowBytes, 0, 0,
                                tile.n_block * kWGroups + rank * (kWGroups / 2), tile.expert, Grouped::kAllCtas,
                                weight_policy);
        } else {
          for (int box = 0; box < 2; box++)
            tma_load_5d(smem.w[stage] + box * kPackedBoxBytes, &map, full, k * kPackedRowBytes, 0, 0,
                        tile.n_block * kWGroups + box * (kWGroups / 2), tile.expert, weight_policy);
        }
        bulk_load(smem.a_scale[stage], x_scale + (size_t)k * tile.expert_rows, tile.m_rows * 4, full, scale_policy);
      }
      __syncwarp();
      if (k % Smem::kScaleBlocks == 0) {
        uint8_t* to = smem.w_scale[pipe.scales.stage] + thread * Smem::kScaleBytes;
        cp_async_weight_scales<Smem>(to, w_scale, k);
        cp_async_weight_scales<Smem>(to + kProducerThreads * Smem::kScaleBytes, w_scale + kSecondRowScales, k);
      }
      cp_async_rows_of_x(smem.a[stage][0] + at, args.x + k * kBlockK, x_offset);
      cp_async_mbar_arrive(full);
    }
  }
}

// ---- consumer ----

template <int kHSplit>
__device__ __forceinline__ void mxfp4_gemm1_tile(Mxfp4Gemm1Smem& smem, const GroupedArgs& args,
                                                 Mxfp4Gemm1Smem::Pipeline& pipe, const WorkTile& tile, int warpgroup) {
  dispatch_mxfp4_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    Mxfp4Mainloop<N, 1, kNumKBlocks1, true, Mxfp4Gemm1Smem>(smem, pipe, sum, warpgroup).run();
    swiglu_quant_swap_ab<N, kHSplit>(smem, args, tile, sum, warpgroup);
  });
}

// ---- kernel ----

template <int kHSplit>
__global__ void __launch_bounds__(Grouped::kThreads, 1)
    mxfp4_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ GroupedArgs args) {
  if (threadIdx.x == 0) prefetch_tma_descriptor(&map);
  write_magnitudes<Mxfp4Gemm1Smem>();
  Mxfp4Gemm1Smem& smem = init_gemm<Mxfp4Gemm1Smem>(1 + kProducerThreads);
  pdl_wait();
  pdl_launch_dependents();
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (blockIdx.x == 0 && threadIdx.x == 0) args.counters->grid_barrier = 0;  // for the next layer's route_permute
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kMxfp4ProducerRegs>();
    load_mxfp4_gemm1(smem, map, args, queues, rank);
  } else {
    warpgroup_reg_alloc<kMxfp4ConsumerRegs>();
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    Mxfp4Gemm1Smem::Pipeline pipe;
    WorkTile tile;
    StaticTileScheduler scheduler(args.queue1, queues, args.clusters);
    if (!scheduler.has_next()) signal_h_ready(&args.counters->h_ready_except_last_wave);  // a cluster without a tile
    while (scheduler.get_next_tile(tile, rank)) {
      if (!scheduler.has_next()) signal_h_ready(&args.counters->h_ready_except_last_wave);
      mxfp4_gemm1_tile<kHSplit>(smem, args, pipe, tile, warpgroup);
    }
    signal_h_ready(&args.counters->h_ready);
  }
  __syncwarp();
  cluster_sync();  // the other CTA still arrives at this one's barriers
}

// ---- host ----

// Templates, so that no FP8 layer compiles the kernels.
template <bool kUsed>
static cudaError_t prepare() {
  if constexpr (kUsed) {
    for (auto kernel : {mxfp4_gemm1<1>, mxfp4_gemm1<2>})
      if (const cudaError_t error =
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Mxfp4Gemm1Smem)))
        return error;
  }
  return cudaSuccess;
}
template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  if constexpr (kUsed)
    return launch_with_pdl(h_split == 1 ? mxfp4_gemm1<1> : mxfp4_gemm1<2>, Grouped::kClusterCtas * args.clusters,
                           Grouped::kThreads, clusters_of(Grouped::kClusterCtas), sizeof(Mxfp4Gemm1Smem), stream, w1,
                           args);
  return cudaErrorNotSupported;
}

cudaError_t prepare_mxfp4_gemm1() { return prepare<kMxfp4Weights>(); }
cudaError_t launch_mxfp4_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  return launch<kMxfp4Weights>(args, w1, h_split, stream);
}

}  // namespace hopper_fused
