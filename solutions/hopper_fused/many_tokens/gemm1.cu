// grouped_gemm1: G = W13 . x^T for all rows, h = silu(gate) * up, h in one or two FP8 terms.
// Clusters of two CTAs, one CTA per SM, static tile scheduler.
//
//   warps     work
//   8 .. 11   producers: W13 by TMA (half a tile each, multicast to both CTAs, where the tiles share weights); scales
//             of x by bulk copy; x from the tokens' rows by cp.async, swizzled on the way; scales of W13 by cp.async
//   0 .. 7    consumers, two warpgroups: wgmma, then SwiGLU and FP8 with one scale for each row and the tile's 128
//             columns of h; h by bulk store
//
// TMA interleaves eight weight rows of W13's first half, up or gate (interface.cuh), with eight of the second, so
// SwiGLU stays in registers.
//
// mbarrier        arrivals per phase                                        waits                  parity
// full[stage]     1 + 128 + bytes: thread 0 of the producers (its           warps 0..7             pipeline phase
//                 expect_tx counts the other CTA's multicast too), and
//                 every producer thread when its cp.asyncs are in
// empty[stage]    16: the 8 consumer warps of both CTAs                     all producer threads   pipeline phase ^ 1
//
// named barrier           threads                what it orders
// kBarGemm1Consumers      256: warps 0..7        swap-AB epilogue: row maxima, inverse scales, staged h
// kBarGemm1Warpgroup + w  128: warpgroup w       normal epilogue: `staged` is free; staged h is complete
//
// global counter   arrivals                                                     waits
// stored_but_last  every warpgroup, before its last tile                        gemm2's producer, for early tiles
// stored_all       every warpgroup, after its last tile                         gemm2's producer
//
// It cannot deadlock: the CTAs of a cluster are resident together, and none waits for another cluster.
#include "barrier.cuh"
#include "cluster.cuh"
#include "cp_async.cuh"
#include "gemm1_normal.cuh"
#include "gemm1_swap_ab.cuh"
#include "l2.cuh"
#include "launch.cuh"
#include "pdl.cuh"
#include "pipeline.cuh"
#include "registers.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int kPiecesPerRow = kBlockK / 16;  // 16-byte pieces of a row's K step
constexpr int kTileGroups = kTileWeightRows / (2 * kAtomRows);  // groups of 8 rows of each half in a tile
static_assert(kTileGroups % 2 == 0, "each CTA loads half of the groups");

// For all producer threads. Each copies 16 bytes of every 16th row, whose tokens it knows; thread 0 also requests
// weights and scales.
__device__ __forceinline__ void load_gemm1(
    Gemm1Smem& s, const CUtensorMap& map, const ManyArgs& args, const TileQueues& queues, int rank) {
  constexpr int kRowsAtOnce = kProducerThreads / kPiecesPerRow, kTimes = kTileRows / kRowsAtOnce;
  const uint64_t weight_policy = queues.experts <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t scale_policy = l2_evict_last();
  const int thread = threadIdx.x % kProducerThreads, row = thread / kPiecesPerRow, piece = thread % kPiecesPerRow;
  const int place = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, piece * 16);
  if (thread == 0) fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
  PipelineState<Gemm1Smem::kStages> pipe;
  WorkTile tile;
  for (StaticTileScheduler scheduler(args.tiles1, queues, args.clusters); scheduler.take(tile, rank);) {
    const int first_row = tile.first_row, rows = tile.rows;
    const float* scale = args.gathered_scale + (size_t)first_row * kNumKBlocks1 + tile.first;
    const float* w_scale =
        args.w1_scale + (size_t)((tile.expert * 2 + thread) * (kIntermediate / kBlockK) + tile.column) * kNumKBlocks1;
    unsigned from[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; i++)
      from[i] = i * kRowsAtOnce < tile.n
                    ? __ldg(args.row_token + first_row + tile.first + i * kRowsAtOnce + row) * kHidden + piece * 16u
                    : 0u;
    for (int k = 0; k < kNumKBlocks1; k++, pipe.advance()) {
      const int stage = pipe.stage;
      uint64_t* full = &s.full[stage];
      mbar_wait(&s.empty[stage], pipe.phase ^ 1);
      if (thread == 0) {
        mbar_arrive_expect_tx(full, kTileWeightBytes + tile.n * 4);
        if (tile.shared) {
          tma_load_5d_multicast(s.w[stage] + rank * kCtaWeightBytes, &map, full, k * kBlockK, 0, 0,
                                tile.column * kTileGroups + rank * (kTileGroups / 2), tile.expert, kAllCtas,
                                weight_policy);
        } else {
          for (int half = 0; half < 2; half++)
            tma_load_5d(s.w[stage] + half * kCtaWeightBytes, &map, full, k * kBlockK, 0, 0,
                        tile.column * kTileGroups + half * (kTileGroups / 2), tile.expert, weight_policy);
        }
        bulk_load(s.scales[stage], scale + (size_t)k * rows, tile.n * 4, full, scale_policy);
      }
      __syncwarp();
      if (thread < 2)  // thread 0: the first half's scales; thread 1: the second's
        cp_async_16(s.w_scales[stage] + kScaleSteps * thread, w_scale + k / kScaleSteps * kScaleSteps);
      const uint8_t* x = args.x + k * kBlockK;
      uint8_t* to = s.rows[stage][0] + place;
#pragma unroll
      for (int i = 0; i < kTimes; i++)
        if (i * kRowsAtOnce < tile.n) cp_async_16(to + i * kRowsAtOnce * kBlockK, x + from[i]);
      cp_async_mbar_arrive(full);
    }
  }
}

template <int kHSplit>
__global__ void __launch_bounds__(kGemmThreads, 1)
    grouped_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs args) {
  pdl_wait();
  pdl_launch_dependents();
  Gemm1Smem& s = init_gemm<Gemm1Smem>(1 + kProducerThreads);
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (blockIdx.x == 0 && threadIdx.x == 0) args.counters->routed = 0;  // for the next layer's route_permute
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kGemmProducerRegs>();
    load_gemm1(s, map, args, queues, rank);
  } else {
    warpgroup_reg_alloc<kGemmConsumerRegs>();
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    PipelineState<Gemm1Smem::kStages> pipe;
    WorkTile tile;
    StaticTileScheduler scheduler(args.tiles1, queues, args.clusters);
    if (!scheduler.more()) signal_h_stored(&args.counters->stored_but_last);  // a cluster without a tile
    while (scheduler.take(tile, rank)) {
      if (!scheduler.more()) signal_h_stored(&args.counters->stored_but_last);
      if (tile.normal) gemm1_normal<kHSplit>(s, args, pipe, tile, warpgroup);
      else gemm1_swap_ab<kHSplit>(s, args, pipe, tile, warpgroup);
    }
    signal_h_stored(&args.counters->stored_all);
  }
  __syncwarp();
  cluster_sync();  // the other CTA still arrives at this one's barriers
}

cudaError_t prepare_grouped_gemm1() {
  for (auto kernel : {grouped_gemm1<1>, grouped_gemm1<2>})
    if (const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Gemm1Smem)))
      return error;
  return cudaSuccess;
}

cudaError_t launch_grouped_gemm1(const ManyArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  return launch_with_pdl(h_split == 1 ? grouped_gemm1<1> : grouped_gemm1<2>, kClusterCtas * args.clusters, kGemmThreads,
                         clusters_of(kClusterCtas), sizeof(Gemm1Smem), stream, w1, args);
}
