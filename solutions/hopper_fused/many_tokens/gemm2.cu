// many_gemm2: Y = W2 . h^T for all rows, in bf16; h's scales carry the routing weights.
//
//   warp 8        draws the cluster's next tile, and loads: weights by TMA, half a tile each block to both where they are
//                 shared; h by bulk copy, as soon as gemm1 has counted it as stored
//   warps 9..11   zeros to the output of tokens without rows, which combine passes over
//   warps 0..7    two warpgroups: products, then bf16 through shared memory into y, in whole lines
//
// A block begins where one of gemm1 has ended, while others of gemm1 are at work. It cannot deadlock: all of gemm1's blocks
// have begun when the first of these does, and none of them waits for one of these.
#include "gemm2_swap_ab.cuh"
#include "gemm2_normal.cuh"

template <int kTerms>
__device__ __forceinline__ void load_gemm2(Gemm2Smem<kTerms>& s, const CUtensorMap& map, const ManyArgs& args, int rank) {
  constexpr int kStages = Gemm2Smem<kTerms>::kStages;
  const TileQueues plan = read_tile_queues(&args.counters->plan);
  const int all = (plan.long_tiles + plan.short_tiles) * (args.y_columns / (2 * kTileWeightRows));
  const bool few_share = plan.rows <= plan.experts * kEvictFirstRows;
  const uint64_t for_weights = few_share ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t last = l2_evict_last();
  const bool copies = threadIdx.x % 32 == 0, is_first = args.first_column == 0;
  enum { kNothing, kButLast, kAll } known = kNothing;  // of h: is there
  int ahead = kStages;  // steps of the first tile whose weights are asked for before anything is waited for
  PipelineState<kStages> pipe;
  WorkTile tile;
  for (int nth = 0; receive_tile(s, tile, args.tiles2, all, nth, rank); ahead = 0, nth++) {
    int number = 0;  // of the next tile: drawn now, as it takes its time
    if (copies && rank == 0) number = args.clusters + atomicAdd(&args.counters->drawn[args.first_column / args.y_columns], 1u);
    const int weight_row = tile.expert * kHidden + args.first_column + tile.column * kTileWeightRows;
    const auto load_weights = [&](int k, int stage) {
      uint64_t* full = &s.full[stage];
      mbar_expect_tx(full, kTileWeightBytes);
      if (tile.shared) {
        tma_load_2d_multicast(s.w[stage] + rank * kTileWeightBytes / 2, &map, full, k * kBlockK, weight_row + rank * 128, 3, for_weights);
      } else {
        for (int half = 0; half < 2; half++)
          tma_load_2d(s.w[stage] + half * kTileWeightBytes / 2, &map, full, k * kBlockK, weight_row + half * 128, for_weights);
      }
    };
    if (ahead > 0) {
      for (int k = 0; copies && k < ahead; k++) load_weights(k, k);
      if (!is_first) pdl_wait();  // combine has read the y that this launch writes over
      pdl_launch_dependents();
    }
    const auto wanted = tile.early ? kButLast : kAll;
    if (copies && known < wanted) {
      counter_wait(wanted == kAll ? &args.counters->stored_all : &args.counters->stored_but_last, args.clusters * kClusterCtas * (kConsumerThreads / kWarpgroupThreads));
      fence_proxy_async_global();  // scales were stored by ordinary stores
      known = wanted;
    }
    if (copies) {
      const int first_row = tile.first_row, rows = tile.rows;
      const uint8_t* h = args.h + (size_t)first_row * kInter * kTerms + tile.first * kBlockK;
      const float* scale = args.h_scale + (size_t)first_row * kKSteps2 + tile.first;
      const auto step = [&](int k) {
        const int stage = pipe.stage;
        uint64_t* full = &s.full[stage];
        mbar_wait(&s.empty[stage], pipe.phase ^ 1);
        if (k >= ahead) load_weights(k, stage);
        mbar_arrive_expect_tx(full, tile.n * (kTerms * kBlockK + 4));
        for (int term = 0; term < kTerms; term++)
          bulk_load(s.rows[stage][term], h + (size_t)(k * kTerms + term) * rows * kBlockK, tile.n * kBlockK, full, last);
        bulk_load(s.scales[stage], scale + (size_t)k * rows, tile.n * 4, full, last);
        pipe.next();
      };
#pragma unroll 1
      for (int k = 0; k < kKSteps2 - 1; k++) step(k);
      // while consumers are busy with the steps before
      publish_tile(s, rank == 0 ? queue_entry(args.tiles2, all, number) : make_uint2(kNoTile, 0), nth, rank);
      step(kKSteps2 - 1);
    }
    __syncwarp();
  }
}

// For the warps that have nothing else to do.
__device__ __forceinline__ void clear_tokens(const ManyArgs& args) {
  constexpr int kWarps = kProducerThreads / 32 - 1, kAtOnce = 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kProducerThreads / 32 - 1;
  for (int first = (blockIdx.x * kWarps + warp) * kAtOnce; first < args.num_tokens; first += gridDim.x * kWarps * kAtOnce) {
    const int t = first + lane;
    const bool without = lane < kAtOnce && t < args.num_tokens && args.token_rows[(size_t)t * kMaxTokenRows] < 0;
    for (unsigned left = __ballot_sync(0xffffffffu, without); left; left &= left - 1) {
      uint4* to = reinterpret_cast<uint4*>(args.output + (size_t)(first + __ffs(left) - 1) * kHidden);
#pragma unroll 4
      for (int i = lane; i < kHidden / 8; i += 32) __stcs(to + i, make_uint4(0, 0, 0, 0));
    }
  }
}

template <int kTerms>
__global__ void __launch_bounds__(kGemmThreads, 1)
    many_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs args) {
  using Smem = Gemm2Smem<kTerms>;
  Smem& s = init_gemm<Smem>(1);
  const int rank = cluster_rank(), warp = threadIdx.x / 32;
  if (warp >= kConsumerThreads / 32) {
    warpgroup_reg_dealloc<56>();
    if (warp == kConsumerThreads / 32) load_gemm2<kTerms>(s, map, args, rank);
    else if (kLocal < kExperts && args.first_column == 0) clear_tokens(args);
  } else {
    warpgroup_reg_alloc<224>();
    if (args.first_column > 0) pdl_wait();  // combine has read the y that this launch writes over
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    PipelineState<Smem::kStages> pipe;
    WorkTile tile;
    const TileQueues plan = read_tile_queues(&args.counters->plan);
    const int all = (plan.long_tiles + plan.short_tiles) * (args.y_columns / (2 * kTileWeightRows));
    for (int nth = 0; receive_tile(s, tile, args.tiles2, all, nth, rank); nth++) {
      const int row = tile.first_row + tile.first, column = tile.column * kTileWeightRows;
      const float* scale = args.w2_scale + (size_t)(tile.expert * kKSteps1 + (args.first_column + column) / kBlockK) * kKSteps2;
      uint16_t* y = args.y + (size_t)row * args.y_columns + column;
      if (tile.normal) gemm2_normal<kTerms>(s, pipe, tile, scale, y, args.y_columns, warpgroup);
      else gemm2_swap_ab<kTerms>(s, pipe, tile, scale, y, args.y_columns, warpgroup);
    }
  }
  pdl_wait();  // in blocks without a tile too: this kernel must not be over before the one before it
  __syncwarp();
  cluster_sync();  // a block that is gone cannot be told that a slot is free
}

template <int kTerms>
static cudaError_t prepare() {
  return cudaFuncSetAttribute(many_gemm2<kTerms>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gemm2Smem<kTerms>));
}
cudaError_t prepare_many_gemm2() {
  const cudaError_t error = prepare<1>();
  return error != cudaSuccess ? error : prepare<2>();
}

cudaError_t launch_many_gemm2(const ManyArgs& args, const CUtensorMap& w2, int terms, cudaStream_t stream) {
  return terms == 1
             ? launch_with_pdl(many_gemm2<1>, kClusterCtas * args.clusters, kGemmThreads, kClusterCtas, sizeof(Gemm2Smem<1>), stream, w2, args)
             : launch_with_pdl(many_gemm2<2>, kClusterCtas * args.clusters, kGemmThreads, kClusterCtas, sizeof(Gemm2Smem<2>), stream, w2, args);
}
