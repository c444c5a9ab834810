// grouped_gemm2: y = h W2^T for all rows, in bf16, or in scaled fp16 where h is hi and lo. The scales of h include the
// routing weights. Clusters of two CTAs, one CTA per SM, a dynamic tile scheduler, and a pipeline of four K blocks, or
// three with hi and lo.
//
//   warps    for each of the CTA's tiles (tile_scheduler.cuh)
//   8        producer, by one lane, K block by K block: W2 by TMA (all of the tile's, or half by multicast); h and its
//            scales by bulk copy, once gemm1 has stored them. W2 of the CTA's first kStages K blocks is requested even
//            before that (prefetched_k). Before a tile's last K block CTA 0 sends the cluster's next tile to both CTAs
//   9 - 11   no tiles: they zero the output of tokens without rows, which combine skips
//   0 - 7    consumers, two warpgroups (gemm2_tile.cuh): wgmma, then y through smem.d to memory, in whole lines; normal
//            tiles of narrow experts by TMA
//
//   mbarrier      arrivals   who arrives                     who waits     what it protects
//   full[stage]   1, bytes   warp 8                          warps 0 - 7   w, a, a_scale are loaded. Bytes: W2 by both
//                                                                          CTAs, h and its scales
//   empty[stage]  16         a lane of each consumer warp    warp 8        the stage may be overwritten in both CTAs: a
//                            of both CTAs                                  multicast writes both
//   tile_full[i]  1, bytes   warp 8; CTA 0 sends the bytes   warps 0 - 8   tile_entry[i] is written. When it may be
//                                                                          overwritten: DynamicTileScheduler::publish
//   Parities of full and empty are those of pipeline.cuh, that of tile_full is (nth tile - 1) / kSchedulerStages % 2.
//
//   named barrier           threads   who arrives and waits   what it protects, in order of use
//   Gemm2WarpgroupBarrier   128       warpgroup w             smem.d is free; it is written. Narrow experts: of swap-AB
//                                                             tiles alone; and that it is read
//   With narrow experts a normal tile's part of smem.d is the warp's own: its first lane waits for its TMA stores to
//   have read a box before the warp overwrites it, and for all of them before a swap-AB tile's first barrier.
//
//   global counter            who arrives                     who waits   what it protects
//   h_ready_except_last_wave  gemm1, see grouped_gemm1.cu     warp 8      h of tiles before_last_wave
//   h_ready                   gemm1                           warp 8      h of the others
//   next_entry                warp 8 of CTA 0, for each tile  nobody      a ticket: who takes which entry
//
// A cluster starts on SMs that gemm1 has left (PDL), while other CTAs of gemm1 still run. In later column passes it
// follows combine in the same way. What route_permute wrote is complete then, because gemm1 and combine call
// pdl_launch_dependents() after their own pdl_wait().
//
// It cannot deadlock: when the first CTA of this kernel starts, all CTAs of the kernel before it have started, and none
// of those waits for this kernel. Within a cluster it cannot for the same reason as in gemm1.
#include <cuda.h>

#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "hopper_fused/many_tokens/gemm2_queue.cuh"
#include "hopper_fused/many_tokens/gemm2_tile.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "common/cuda/layer/interface.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/layer/weights.cuh"

namespace hopper_fused {

// ---- producer ----

// For warp 8, whose first lane loads: W2, h and the scales of h of all the CTA's tiles.
template <int kHSplit>
__device__ __forceinline__ void load_gemm2(
    Gemm2Smem<kHSplit>& smem, const CUtensorMap& map, const GroupedArgs& args, int rank) {
  constexpr int kStages = Gemm2Smem<kHSplit>::kStages;
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int entries = entries_of_pass(queues, args);
  const bool few_rows = queues.rows <= queues.experts * kEvictFirstRows;
  const uint64_t weight_policy = few_rows ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t h_policy = l2_evict_last();
  const bool loads = threadIdx.x % kWarp == 0, first_pass = args.first_column == 0;
  enum { kNothing, kExceptLastWave, kAll } h_ready = kNothing;  // what is known to be stored of h
  // K blocks whose weights are requested before h is there: in the CTA's first tile only
  int prefetched_k = kStages < kNumKBlocks2 ? kStages : kNumKBlocks2;
  typename Gemm2Smem<kHSplit>::Pipeline pipe;
  WorkTile tile;
  const DynamicTileScheduler<Gemm2Smem<kHSplit>> scheduler{smem, args.queue2, entries, rank};
  for (int nth = 0; scheduler.get_tile(tile, nth); prefetched_k = 0, nth++) {
    int position = 0;  // the next entry's; requested now, as the answer takes a while, and used at this tile's end
    if (loads && rank == 0)
      position = args.clusters + atomicAdd(&args.counters->next_entry[args.first_column / args.y_columns], 1u);
    const int weight_row = tile.expert * kHidden + args.first_column + tile.n_block * Grouped::kBlockN;
    const auto load_weights = [&](int k, int stage) {
      Barrier& full = smem.full[stage];
      full.expect(Grouped::kWTileBytes);  // with multicast: half of them by the other CTA
      if (tile.multicast_w) {
        tma_load_2d_multicast(smem.w[stage] + rank * Grouped::kWBoxBytes, &map, full, k * kBlockK,
                              weight_row + rank * Grouped::kW2BoxRows, Grouped::kAllCtas, weight_policy);
      } else {
        for (int box = 0; box < 2; box++)
          tma_load_2d(smem.w[stage] + box * Grouped::kWBoxBytes, &map, full, k * kBlockK,
                      weight_row + box * Grouped::kW2BoxRows, weight_policy);
      }
    };

    if (prefetched_k > 0) {
      for (int k = 0; loads && k < prefetched_k; k++) load_weights(k, k);
      if (!first_pass) pdl_wait();  // this pass's combine starts when the previous one's is over
      pdl_launch_dependents();      // one warp does it for the CTA
    }

    const auto h_needed = tile.before_last_wave ? kExceptLastWave : kAll;
    if (loads && h_ready < h_needed) {
      counter_wait(h_needed == kAll ? &args.counters->h_ready : &args.counters->h_ready_except_last_wave,
                   args.clusters * Grouped::kClusterCtas * kConsumerWarpgroups);
      fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
      h_ready = h_needed;
    }

    if (loads) {
      const uint8_t* h = args.h + (size_t)tile.expert_first * Grouped::kPaddedIntermediate * kHSplit +
                         tile.m_first * kBlockK;
      const float* h_scale = args.h_scale + (size_t)tile.expert_first * Grouped::kNumNBlocks1 + tile.m_first;
      const auto load_k_block = [&](int k) {
        const int stage = pipe.stage;
        Barrier& full = smem.full[stage];
        smem.empty[stage].wait(pipe.phase ^ 1);
        fence_proxy_async_shared();  // the scales of h that were here were read by generic loads
        if (k >= prefetched_k) load_weights(k, stage);
        full.arrive_and_expect(tile.m_rows * (kHSplit * kBlockK + 4));
        for (int part = 0; part < kHSplit; part++)
          bulk_load(smem.a[stage][part], h + (size_t)(k * kHSplit + part) * tile.expert_rows * kBlockK,
                    tile.m_rows * kBlockK, full, h_policy);
        bulk_load(smem.a_scale[stage], h_scale + (size_t)k * tile.expert_rows, tile.m_rows * 4, full, h_policy);
        pipe.advance();
      };
#pragma unroll 1
      for (int k = 0; k < kNumKBlocks2 - 1; k++) load_k_block(k);
      // while the consumers still compute earlier K blocks
      scheduler.publish(rank == 0 ? queue_entry(args.queue2, entries, position) : make_uint2(kNoTile, 0), nth);
      load_k_block(kNumKBlocks2 - 1);
    }
    __syncwarp();
  }
}

// ---- kernel ----

__device__ __forceinline__ const CUtensorMap& w2_map(const CUtensorMap& maps) { return maps; }
__device__ __forceinline__ const CUtensorMap& w2_map(const WeightAndResultMaps& maps) { return maps.w2; }
__device__ __forceinline__ const CUtensorMap* y_map(const CUtensorMap&) { return nullptr; }
__device__ __forceinline__ const CUtensorMap* y_map(const WeightAndResultMaps& maps) { return &maps.y; }

template <int kHSplit>
__global__ void __launch_bounds__(Grouped::kThreads, 1)
    grouped_gemm2(const __grid_constant__ Gemm2Maps maps, const __grid_constant__ GroupedArgs args) {
  auto& smem = init_gemm<Gemm2Smem<kHSplit>>(1);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<Grouped::kProducerRegisters>();
    if (warp == kConsumerWarps) load_gemm2<kHSplit>(smem, w2_map(maps), args, rank);
    else if (kSomeWithoutRows && args.first_column == 0) zero_tokens_without_rows(args);
  } else {
    warpgroup_reg_alloc<Grouped::kConsumerRegisters>();
    if (args.first_column > 0) pdl_wait();  // the previous pass's combine has read the y that this pass overwrites
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    typename Gemm2Smem<kHSplit>::Pipeline pipe;
    WorkTile tile;
    const int entries = entries_of_pass(read_tile_queues(&args.counters->queues), args);
    const DynamicTileScheduler<Gemm2Smem<kHSplit>> scheduler{smem, args.queue2, entries, rank};
    for (int nth = 0; scheduler.get_tile(tile, nth); nth++) {
      const int row = tile.expert_first + tile.m_first, column = tile.n_block * Grouped::kBlockN;
      const int w_scale_row = tile.expert * (kHidden / kBlockK) + (args.first_column + column) / kBlockK;
      const float* w_scale = args.w2_scale + (size_t)w_scale_row * kNumKBlocks2;
      uint16_t* y = args.y + (size_t)row * args.y_columns + column;
      float* y_scale = args.y_scale + (size_t)row * (args.y_columns / kBlockK) + column / kBlockK;
      if (tile.normal) gemm2_normal<kHSplit>(smem, pipe, args, tile, w_scale, y_map(maps), y, y_scale, warpgroup);
      else gemm2_swap_ab<kHSplit>(smem, pipe, args, tile, w_scale, y, y_scale, warpgroup);
    }
    if constexpr (Grouped::kNarrow) bulk_wait();
  }
  pdl_wait();  // also in CTAs without a tile: this kernel must not end before the one before it
  __syncwarp();
  cluster_sync();  // the other CTA still arrives at this one's barriers
}

// ---- host ----

// These are templates so that a layer with MXFP4 weights does not compile the kernels.
template <bool kUsed>
static cudaError_t prepare() {
  if constexpr (kUsed) {
    const cudaError_t error =
        cudaFuncSetAttribute(grouped_gemm2<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gemm2Smem<1>));
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(grouped_gemm2<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gemm2Smem<2>));
  }
  return cudaSuccess;
}
template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, const Gemm2Maps& maps, int h_split, cudaStream_t stream) {
  if constexpr (kUsed)
    return launch_with_pdl(h_split == 1 ? grouped_gemm2<1> : grouped_gemm2<2>, Grouped::kClusterCtas * args.clusters,
                           Grouped::kThreads, clusters_of(Grouped::kClusterCtas),
                           h_split == 1 ? sizeof(Gemm2Smem<1>) : sizeof(Gemm2Smem<2>), stream, maps, args);
  return cudaErrorNotSupported;
}

cudaError_t prepare_grouped_gemm2() { return prepare<!kMxfp4Weights>(); }
cudaError_t launch_grouped_gemm2(const GroupedArgs& args, const Gemm2Maps& maps, int h_split, cudaStream_t stream) {
  return launch<!kMxfp4Weights>(args, maps, h_split, stream);
}

}  // namespace hopper_fused
