// many_gemm1: G = W13 . x^T for all rows, h = silu(gate) * up, h in one or two FP8 terms.
//
//   warps 8..11   load: weights by TMA, half a tile each block to both where they are shared; rows from where their tokens'
//                 x lies, by 16-byte copies, which swizzle them on the way; the weights' scales
//   warps 0..7    two warpgroups: products, then SwiGLU and FP8 with one scale for a row and the tile's 128 columns of h
//
// A tile's 256 weight rows are 8 of up and 8 of gate in turn (the TMA box does that): SwiGLU stays in registers.
// It cannot deadlock: the two blocks of a cluster run together, and no block waits for another cluster.
#include "gemm1_swap_ab.cuh"
#include "gemm1_normal.cuh"

// For the warps 8 to 11: 16 bytes of each 16th row are a thread's, which knows the rows' tokens; the first thread asks for
// weights and scales as well.
__device__ __forceinline__ void load_gemm1(Gemm1Smem& s, const CUtensorMap& map, const ManyArgs& args, const TileQueues& plan, int rank) {
  constexpr int kRowsAtOnce = kProducerThreads / 8, kTimes = kTileRows / kRowsAtOnce;
  const uint64_t for_weights = plan.experts <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t last = l2_evict_last();
  const int thread = threadIdx.x % kProducerThreads, row = thread / 8, piece = thread % 8;
  const int place = row / 8 * kAtomBytes + swizzle_128b(row % 8, piece * 16);
  if (thread == 0) fence_proxy_async_global();  // it copies the scales, which were stored by ordinary stores
  PipelineState<Gemm1Smem::kStages> pipe;
  WorkTile tile;
  for (StaticTileScheduler scheduler(args.tiles1, plan, args.clusters); scheduler.take(tile, rank);) {
    const int first_row = tile.first_row, rows = tile.rows;
    const float* scale = args.gathered_scale + (size_t)first_row * kKSteps1 + tile.first;
    const float* w_scale = args.w1_scale + (size_t)((tile.expert * 2 + thread) * (kInter / kBlockK) + tile.column) * kKSteps1;
    unsigned from[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; i++)
      from[i] = i * kRowsAtOnce < tile.n
                    ? __ldg(args.row_token + first_row + tile.first + i * kRowsAtOnce + row) * kHidden + piece * 16u
                    : 0u;
    for (int k = 0; k < kKSteps1; k++, pipe.next()) {
      const int stage = pipe.stage;
      uint64_t* full = &s.full[stage];
      mbar_wait(&s.empty[stage], pipe.phase ^ 1);
      if (thread == 0) {
        mbar_arrive_expect_tx(full, kTileWeightBytes + tile.n * 4);
        if (tile.shared) {
          tma_load_5d_multicast(s.w[stage] + rank * kTileWeightBytes / 2, &map, full, k * kBlockK, 0, 0, tile.column * 16 + rank * 8,
                           tile.expert, 3, for_weights);
        } else {
          for (int half = 0; half < 2; half++)
            tma_load_5d(s.w[stage] + half * kTileWeightBytes / 2, &map, full, k * kBlockK, 0, 0, tile.column * 16 + half * 8,
                   tile.expert, for_weights);
        }
        bulk_load(s.scales[stage], scale + (size_t)k * rows, tile.n * 4, full, last);
      }
      __syncwarp();
      if (thread < 2) cp_async_16(s.w_scales[stage] + 4 * thread, w_scale + k / 4 * 4);  // up's and gate's
      const uint8_t* x = args.x + k * kBlockK;
      uint8_t* to = s.rows[stage][0] + place;
#pragma unroll
      for (int i = 0; i < kTimes; i++)
        if (i * kRowsAtOnce < tile.n) cp_async_16(to + i * kRowsAtOnce * kBlockK, x + from[i]);
      cp_async_mbar_arrive(full);
    }
  }
}

template <int kTerms>
__global__ void __launch_bounds__(kGemmThreads, 1)
    many_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs args) {
  pdl_wait();
  pdl_launch_dependents();
  Gemm1Smem& s = init_gemm<Gemm1Smem>(1 + kProducerThreads);
  const TileQueues plan = read_tile_queues(&args.counters->plan);
  const int rank = cluster_rank(), warp = threadIdx.x / 32;
  if (blockIdx.x == 0 && threadIdx.x == 0) args.counters->routed = 0;
  if (warp >= kConsumerThreads / 32) {
    warpgroup_reg_dealloc<56>();
    load_gemm1(s, map, args, plan, rank);
  } else {
    warpgroup_reg_alloc<224>();
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    PipelineState<Gemm1Smem::kStages> pipe;
    WorkTile tile;
    StaticTileScheduler scheduler(args.tiles1, plan, args.clusters);
    if (!scheduler.more()) signal_h_stored(&args.counters->stored_but_last);  // without a tile
    while (scheduler.take(tile, rank)) {
      if (!scheduler.more()) signal_h_stored(&args.counters->stored_but_last);
      if (tile.normal) gemm1_normal<kTerms>(s, args, pipe, tile, warpgroup);
      else gemm1_swap_ab<kTerms>(s, args, pipe, tile, warpgroup);
    }
    signal_h_stored(&args.counters->stored_all);
  }
  __syncwarp();
  cluster_sync();  // a block that is gone cannot be told that a slot is free
}

cudaError_t prepare_many_gemm1() {
  for (auto kernel : {many_gemm1<1>, many_gemm1<2>})
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gemm1Smem)))
      return error;
  return cudaSuccess;
}

cudaError_t launch_many_gemm1(const ManyArgs& args, const CUtensorMap& w1, int terms, cudaStream_t stream) {
  return launch_with_pdl(terms == 1 ? many_gemm1<1> : many_gemm1<2>, kClusterCtas * args.clusters, kGemmThreads, kClusterCtas, sizeof(Gemm1Smem), stream, w1,
                     args);
}
