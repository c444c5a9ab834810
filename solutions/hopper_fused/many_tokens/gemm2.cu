// grouped_gemm2: Y = W2 . h^T for all rows, in bf16 or scaled fp16; the scales of h include the routing weights.
// Clusters of two CTAs, one CTA per SM, dynamic tile scheduler.
//
//   warps     work
//   8         producer: takes the cluster's next tile; W2 by TMA (half a tile each, multicast to both CTAs, where the
//             tiles share weights); h and its scales by bulk copy, as soon as gemm1 has signalled them
//   9 .. 11   zero the output of tokens without rows, which combine skips
//   0 .. 7    consumers, two warpgroups: wgmma, then 16 bits through shared memory to y, in whole lines
//
// mbarrier        arrivals per phase                                        waits                  parity
// full[stage]     1 + bytes: warp 8 (its expect_tx counts the other         warps 0..7             pipeline phase
//                 CTA's multicast too)
// empty[stage]    16: the 8 consumer warps of both CTAs                     warp 8                 pipeline phase ^ 1
// tile_full[i]    1 + 8 bytes: warp 8; the bytes by st.async from CTA 0     warps 0..8, for the    (tile - 1) / 4 % 2
//                                                                           next tile
//
// named barrier           threads                what it orders
// kBarGemm2Warpgroup + w  128: warpgroup w       `staged` is free; the staged result is complete
//
// global counter   arrivals                                                     waits
// stored_but_last  gemm1: every warpgroup of every CTA, before its last tile    warp 8, for early tiles
// stored_all       gemm1: the same, after its last tile                         warp 8, for the others
// next_tile        one for each tile taken: CTA 0 of each cluster               none: a ticket
//
// A CTA starts when one of gemm1 has ended (PDL), while others of gemm1 still run. It cannot deadlock: when the first
// CTA of this kernel starts, all CTAs of gemm1 have started, and none of those waits for this kernel.
#include "barrier.cuh"
#include "cluster.cuh"
#include "counter.cuh"
#include "gemm2_normal.cuh"
#include "gemm2_swap_ab.cuh"
#include "l2.cuh"
#include "launch.cuh"
#include "pdl.cuh"
#include "pipeline.cuh"
#include "registers.cuh"
#include "tma.cuh"

// For warp 8, whose first lane loads.
template <int kHSplit>
__device__ __forceinline__ void load_gemm2(Gemm2Smem<kHSplit>& s, const CUtensorMap& map, const ManyArgs& args,
                                           int rank) {
  constexpr int kStages = Gemm2Smem<kHSplit>::kStages;
  static_assert(kNumKBlocks2 >= kStages, "the first tile's weights fill the pipeline before anything is waited for");
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int all = (queues.long_tiles + queues.short_tiles) * (args.y_columns / (2 * kTileWeightRows));
  const bool few_rows = queues.rows <= queues.experts * kEvictFirstRows;
  const uint64_t weight_policy = few_rows ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t h_policy = l2_evict_last();
  const bool copies = threadIdx.x % kWarp == 0, is_first = args.first_column == 0;
  enum { kNothing, kButLast, kAll } known = kNothing;  // what is known to be stored of h
  int ahead = kStages;  // K steps of the first tile whose weights are requested before anything is waited for
  PipelineState<kStages> pipe;
  WorkTile tile;
  const DynamicTileScheduler<Gemm2Smem<kHSplit>> scheduler{s, args.tiles2, all, rank};
  for (int nth = 0; scheduler.get(tile, nth); ahead = 0, nth++) {
    int position = 0;  // of the next tile: requested now, used at this tile's end
    if (copies && rank == 0)
      position = args.clusters + atomicAdd(&args.counters->next_tile[args.first_column / args.y_columns], 1u);
    const int weight_row = tile.expert * kHidden + args.first_column + tile.column * kTileWeightRows;
    const auto load_weights = [&](int k, int stage) {
      uint64_t* full = &s.full[stage];
      mbar_expect_tx(full, kTileWeightBytes);
      if (tile.shared) {
        tma_load_2d_multicast(s.w[stage] + rank * kCtaWeightBytes, &map, full, k * kBlockK,
                              weight_row + rank * (kTileWeightRows / 2), kAllCtas, weight_policy);
      } else {
        for (int half = 0; half < 2; half++)
          tma_load_2d(s.w[stage] + half * kCtaWeightBytes, &map, full, k * kBlockK,
                      weight_row + half * (kTileWeightRows / 2), weight_policy);
      }
    };
    if (ahead > 0) {
      for (int k = 0; copies && k < ahead; k++) load_weights(k, k);
      if (!is_first) pdl_wait();  // the previous pass's combine has read the y that this pass overwrites
      pdl_launch_dependents();
    }
    const auto wanted = tile.early ? kButLast : kAll;
    if (copies && known < wanted) {
      counter_wait(wanted == kAll ? &args.counters->stored_all : &args.counters->stored_but_last,
                   args.clusters * kClusterCtas * (kConsumerThreads / kWarpgroupThreads));
      fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
      known = wanted;
    }
    if (copies) {
      const int first_row = tile.first_row, rows = tile.rows;
      const uint8_t* h = args.h + (size_t)first_row * kIntermediate * kHSplit + tile.first * kBlockK;
      const float* scale = args.h_scale + (size_t)first_row * kNumKBlocks2 + tile.first;
      const auto step = [&](int k) {
        const int stage = pipe.stage;
        uint64_t* full = &s.full[stage];
        mbar_wait(&s.empty[stage], pipe.phase ^ 1);
        if (k >= ahead) load_weights(k, stage);
        mbar_arrive_expect_tx(full, tile.n * (kHSplit * kBlockK + 4));
        for (int term = 0; term < kHSplit; term++)
          bulk_load(s.rows[stage][term], h + (size_t)(k * kHSplit + term) * rows * kBlockK, tile.n * kBlockK, full,
                    h_policy);
        bulk_load(s.scales[stage], scale + (size_t)k * rows, tile.n * 4, full, h_policy);
        pipe.advance();
      };
#pragma unroll 1
      for (int k = 0; k < kNumKBlocks2 - 1; k++) step(k);
      // while the consumers still compute earlier steps
      scheduler.publish(rank == 0 ? queue_entry(args.tiles2, all, position) : make_uint2(kNoTile, 0), nth);
      step(kNumKBlocks2 - 1);
    }
    __syncwarp();
  }
}

// For the producer warps that do not load. A warp looks at kAtOnce tokens at a time.
__device__ __forceinline__ void clear_tokens(const ManyArgs& args) {
  constexpr int kWarps = kProducerThreads / kWarp - 1, kAtOnce = 8;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kProducerThreads / kWarp - 1;
  for (int first = (blockIdx.x * kWarps + warp) * kAtOnce; first < args.num_tokens;
       first += gridDim.x * kWarps * kAtOnce) {
    const int t = first + lane;
    const bool without = lane < kAtOnce && t < args.num_tokens && args.token_rows[(size_t)t * kMaxTokenRows] < 0;
    for (unsigned left = __ballot_sync(kFullWarp, without); left; left &= left - 1) {
      uint4* to = reinterpret_cast<uint4*>(args.output + (size_t)(first + __ffs(left) - 1) * kHidden);
#pragma unroll 4
      for (int i = lane; i < kHidden / 8; i += kWarp) __stcs(to + i, make_uint4(0, 0, 0, 0));
    }
  }
}

template <int kHSplit>
__global__ void __launch_bounds__(kGemmThreads, 1)
    grouped_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs args) {
  using Smem = Gemm2Smem<kHSplit>;
  Smem& s = init_gemm<Smem>(1);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kGemmProducerRegs>();
    if (warp == kConsumerWarps) load_gemm2<kHSplit>(s, map, args, rank);
    else if (kNumLocalExperts < kNumExperts && args.first_column == 0) clear_tokens(args);
  } else {
    warpgroup_reg_alloc<kGemmConsumerRegs>();
    if (args.first_column > 0) pdl_wait();  // the previous pass's combine has read the y that this pass overwrites
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    PipelineState<Smem::kStages> pipe;
    WorkTile tile;
    const TileQueues queues = read_tile_queues(&args.counters->queues);
    const int all = (queues.long_tiles + queues.short_tiles) * (args.y_columns / (2 * kTileWeightRows));
    const DynamicTileScheduler<Smem> scheduler{s, args.tiles2, all, rank};
    for (int nth = 0; scheduler.get(tile, nth); nth++) {
      const int row = tile.first_row + tile.first, column = tile.column * kTileWeightRows;
      const float* scale =
          args.w2_scale + (size_t)(tile.expert * kNumKBlocks1 + (args.first_column + column) / kBlockK) * kNumKBlocks2;
      uint16_t* y = args.y + (size_t)row * args.y_columns + column;
      float* y_scale = args.y_scale + (size_t)row * (args.y_columns / kBlockK) + column / kBlockK;
      if (tile.normal) gemm2_normal<kHSplit>(s, pipe, tile, scale, y, y_scale, args.y_columns, warpgroup);
      else gemm2_swap_ab<kHSplit>(s, pipe, tile, scale, y, y_scale, args.y_columns, warpgroup);
    }
  }
  pdl_wait();  // also in CTAs without a tile: this kernel must not end before the one before it
  __syncwarp();
  cluster_sync();  // the other CTA still arrives at this one's barriers
}

template <int kHSplit>
static cudaError_t prepare() {
  return cudaFuncSetAttribute(grouped_gemm2<kHSplit>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(Gemm2Smem<kHSplit>));
}
cudaError_t prepare_grouped_gemm2() {
  const cudaError_t error = prepare<1>();
  return error != cudaSuccess ? error : prepare<2>();
}

cudaError_t launch_grouped_gemm2(const ManyArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream) {
  const int ctas = kClusterCtas * args.clusters;
  const cudaLaunchAttribute clusters = clusters_of(kClusterCtas);
  return h_split == 1
             ? launch_with_pdl(grouped_gemm2<1>, ctas, kGemmThreads, clusters, sizeof(Gemm2Smem<1>), stream, w2, args)
             : launch_with_pdl(grouped_gemm2<2>, ctas, kGemmThreads, clusters, sizeof(Gemm2Smem<2>), stream, w2, args);
}
