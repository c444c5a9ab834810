// mxfp4_gemm2: grouped_gemm2 with MXFP4 weights: y = h W2^T of all rows, in bf16 or, with hi and lo, scaled fp16. The
// same tiles, clusters, queue and counters (grouped_gemm2.cu); all tiles are swap-AB.
//
//   warps    for each of the CTA's tiles
//   8        producer, K block by K block: its first lane loads packed W2 by TMA (all of the tile's, or half by
//            multicast), h and its scales by bulk copy, once gemm1 has stored them; all lanes, with every fourth K block,
//            the scales of eight weight rows for four by cp.async. W2 of the CTA's first kStages K blocks before h is
//            there (prefetched_k). Before a tile's last K block CTA 0 sends the cluster's next tile to both CTAs
//   9 - 11   no tiles: they zero the output of tokens without rows, which combine skips
//   0 - 7    consumers, two warpgroups: mxfp4_mainloop.cuh; then y through smem.d to memory, in whole lines
//
//   mbarrier      arrivals    who arrives                   who waits     what it protects
//   full[stage]   33, bytes   warp 8's first lane; all its  warps 0 - 7   w, a, a_scale are loaded, and w_scale of this
//                             lanes as their cp.asyncs end                K block. Bytes: W2 by both CTAs, h, its scales
//   empty[stage]  16          a lane of each consumer warp  warp 8        the stage may be overwritten in both CTAs;
//                             of both CTAs                                w_scale: Mxfp4GemmSmem
//   tile_full[i]  1, bytes    as in grouped_gemm2.cu
//
//   named barrier           threads   who arrives and waits   what it protects, in order of use
//   kBarUnusual + w         128       warpgroup w             nothing: a vote on a K block's exponents
//   Gemm2WarpgroupBarrier   128       warpgroup w             with hi and lo: bound, largest_exponent are written; they
//                                                             are read; smem.d is free; it is written
//
// It cannot deadlock, for grouped_gemm2.cu's reasons.
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
#include "hopper_fused/many_tokens/gemm2_queue.cuh"
#include "hopper_fused/many_tokens/gemm2_tile.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_mainloop.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"

namespace hopper_fused {

template <int kHSplit>
using Mxfp4Gemm2Smem = Mxfp4GemmSmem<kHSplit, kNumKBlocks2>;

// ---- producer ----

// For warp 8: copies the scales of K block k and those after it of the tile's weight rows.
template <class Smem>
__device__ __forceinline__ void load_w2_scales(uint8_t* w_scale, const GroupedArgs& args, int weight_row, int k) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < Grouped::kBlockN / kWarp; i++) {
    const int row = i * kWarp + lane;
    cp_async_weight_scales<Smem>(w_scale + row * Smem::kScaleBytes, w2_row_scales(args, weight_row + row), k);
  }
}

// For warp 8; as load_gemm2.
template <int kHSplit>
__device__ __forceinline__ void load_mxfp4_gemm2(
    Mxfp4Gemm2Smem<kHSplit>& smem, const CUtensorMap& map, const GroupedArgs& args, int rank) {
  using Smem = Mxfp4Gemm2Smem<kHSplit>;
  constexpr int kStages = Smem::kStages;
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int entries = entries_of_pass(queues, args);
  const bool few_rows = queues.rows <= queues.experts * kEvictFirstRows;
  const uint64_t weight_policy = few_rows ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t h_policy = l2_evict_last();
  const bool loads = threadIdx.x % kWarp == 0, first_pass = args.first_column == 0;
  enum { kNothing, kExceptLastWave, kAll } h_ready = kNothing;  // what is known to be stored of h
  // K blocks whose weights are requested before h is there: in the CTA's first tile only
  int prefetched_k = kStages < kNumKBlocks2 ? kStages : kNumKBlocks2;
  typename Smem::Pipeline pipe;
  WorkTile tile;
  const DynamicTileScheduler<Smem> scheduler{smem, args.queue2, entries, rank};
  for (int nth = 0; scheduler.get_tile(tile, nth); prefetched_k = 0, nth++) {
    int position = 0;  // of the next entry: requested now, used at this tile's end
    if (loads && rank == 0)
      position = args.clusters + atomicAdd(&args.counters->next_entry[args.first_column / args.y_columns], 1u);
    const int weight_row = tile.expert * kHidden + args.first_column + tile.n_block * Grouped::kBlockN;
    const auto load_weights = [&](int k, int stage) {
      Barrier& full = smem.full[stage];
      full.expect(kPackedTileBytes);  // with multicast: half of them by the other CTA
      if (tile.multicast_w) {
        tma_load_2d_multicast(smem.w[stage] + rank * kPackedBoxBytes, &map, full, k * kPackedRowBytes,
                              weight_row + rank * (Grouped::kBlockN / 2), Grouped::kAllCtas, weight_policy);
      } else {
        for (int box = 0; box < 2; box++)
          tma_load_2d(smem.w[stage] + box * kPackedBoxBytes, &map, full, k * kPackedRowBytes,
                      weight_row + box * (Grouped::kBlockN / 2), weight_policy);
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
    }
    h_ready = h_needed;
    const uint8_t* h = args.h + (size_t)tile.expert_first * Grouped::kPaddedIntermediate * kHSplit +
                       tile.m_first * kBlockK;
    const float* h_scale = args.h_scale + (size_t)tile.expert_first * Grouped::kNumNBlocks1 + tile.m_first;
    const auto load_k_block = [&](int k) {
      const int stage = pipe.stage;
      Barrier& full = smem.full[stage];
      smem.empty[stage].wait(pipe.phase ^ 1);
      if (loads) {
        fence_proxy_async_shared();  // weights and scales of h that were here were read by generic loads
        if (k >= prefetched_k) load_weights(k, stage);
        full.arrive_and_expect(tile.m_rows * (kHSplit * kBlockK + 4));
        for (int part = 0; part < kHSplit; part++)
          bulk_load(smem.a[stage][part], h + (size_t)(k * kHSplit + part) * tile.expert_rows * kBlockK,
                    tile.m_rows * kBlockK, full, h_policy);
        bulk_load(smem.a_scale[stage], h_scale + (size_t)k * tile.expert_rows, tile.m_rows * 4, full, h_policy);
      }
      __syncwarp();
      if (k % Smem::kScaleBlocks == 0) load_w2_scales<Smem>(smem.w_scale[pipe.scales.stage], args, weight_row, k);
      cp_async_mbar_arrive(full);
      pipe.advance(k);
    };
#pragma unroll 1
    for (int k = 0; k < kNumKBlocks2 - 1; k++) load_k_block(k);
    // while the consumers still compute earlier K blocks
    if (loads)
      scheduler.publish(rank == 0 ? queue_entry(args.queue2, entries, position) : make_uint2(kNoTile, 0), nth);
    load_k_block(kNumKBlocks2 - 1);
  }
}

// ---- consumer ----

// The bound of each row's sums with scales of 1 in h's K blocks, times the largest weight: as in gemm2_tile.cuh.
template <int kHSplit, int N>
__device__ __forceinline__ void find_fp16_scales(Mxfp4Gemm2Smem<kHSplit>& smem, float bound, int largest, float* y_scale,
                                                 int y_columns, int rows, float2 (&inverse)[N / 8], int warpgroup) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) largest = max(largest, __shfl_xor_sync(kFullWarp, largest, d));
  if (lane == 0) smem.largest_exponent[warp] = largest;
  Gemm2WarpgroupBarrier::sync(warpgroup);
#pragma unroll
  for (int w = 0; w < kWarpgroupWarps; w++)
    largest = max(largest, smem.largest_exponent[warpgroup * kWarpgroupWarps + w]);
  constexpr float kMost = 6.0f * 448.0f * kBlockK;  // of a K block's products
  const float scale = fp16_scale(bound * kMost * e8m0_value(largest));
  if (row < rows) y_scale[(size_t)row * (y_columns / kBlockK)] = scale;
  smem.bound[warpgroup][row] = inverse_power_of_two(scale);
  Gemm2WarpgroupBarrier::sync(warpgroup);
#pragma unroll
  for (int j = 0; j < N / 8; j++)
    inverse[j] = *reinterpret_cast<const float2*>(smem.bound[warpgroup] + 8 * j + 2 * (lane % kQuad));
}

template <int kHSplit>
__device__ __forceinline__ void mxfp4_gemm2_tile(
    Mxfp4Gemm2Smem<kHSplit>& smem, typename Mxfp4Gemm2Smem<kHSplit>::Pipeline& pipe, const WorkTile& tile, uint16_t* y,
    float* y_scale, int y_columns, int warpgroup) {
  dispatch_mxfp4_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    Mxfp4Mainloop<N, kHSplit, kNumKBlocks2, false, Mxfp4Gemm2Smem<kHSplit>> loop(smem, pipe, sum, warpgroup);
    loop.run();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
    float2 inverse[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++) inverse[j] = {1.0f, 1.0f};
    if constexpr (kHSplit == 2)
      find_fp16_scales<kHSplit, N>(smem, loop.bound, loop.largest, y_scale + warpgroup, y_columns, tile.m_rows, inverse,
                                   warpgroup);
    store_swap_ab<N, kHSplit>(smem.d[warpgroup], sum, inverse, y, y_columns, tile.m_rows, warpgroup,
                              warp, lane);
  });
}

// ---- kernel ----

template <int kHSplit>
__global__ void __launch_bounds__(Grouped::kThreads, 1)
    mxfp4_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ GroupedArgs args) {
  using Smem = Mxfp4Gemm2Smem<kHSplit>;
  write_magnitudes<Smem>();
  Smem& smem = init_gemm<Smem>(1 + kWarp);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kMxfp4ProducerRegs>();
    if (warp == kConsumerWarps) load_mxfp4_gemm2<kHSplit>(smem, map, args, rank);
    else if (kSomeWithoutRows && args.first_column == 0) zero_tokens_without_rows(args);
  } else {
    warpgroup_reg_alloc<kMxfp4ConsumerRegs>();
    if (args.first_column > 0) pdl_wait();  // the previous pass's combine has read the y that this pass overwrites
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    typename Smem::Pipeline pipe;
    WorkTile tile;
    const int entries = entries_of_pass(read_tile_queues(&args.counters->queues), args);
    const DynamicTileScheduler<Smem> scheduler{smem, args.queue2, entries, rank};
    for (int nth = 0; scheduler.get_tile(tile, nth); nth++) {
      const int row = tile.expert_first + tile.m_first, column = tile.n_block * Grouped::kBlockN;
      uint16_t* y = args.y + (size_t)row * args.y_columns + column;
      float* y_scale = args.y_scale + (size_t)row * (args.y_columns / kBlockK) + column / kBlockK;
      mxfp4_gemm2_tile<kHSplit>(smem, pipe, tile, y, y_scale, args.y_columns, warpgroup);
    }
  }
  pdl_wait();  // also in CTAs without a tile: this kernel must not end before the one before it
  __syncwarp();
  cluster_sync();  // the other CTA still arrives at this one's barriers
}

// ---- host ----

// Templates, so that no FP8 layer compiles the kernels.
template <bool kUsed>
static cudaError_t prepare() {
  if constexpr (kUsed) {
    const cudaError_t error = cudaFuncSetAttribute(mxfp4_gemm2<1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   sizeof(Mxfp4Gemm2Smem<1>));
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(mxfp4_gemm2<2>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(Mxfp4Gemm2Smem<2>));
  }
  return cudaSuccess;
}
template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream) {
  if constexpr (kUsed)
    return launch_with_pdl(h_split == 1 ? mxfp4_gemm2<1> : mxfp4_gemm2<2>, Grouped::kClusterCtas * args.clusters,
                           Grouped::kThreads, clusters_of(Grouped::kClusterCtas),
                           h_split == 1 ? sizeof(Mxfp4Gemm2Smem<1>) : sizeof(Mxfp4Gemm2Smem<2>), stream, w2, args);
  return cudaErrorNotSupported;
}

cudaError_t prepare_mxfp4_gemm2() { return prepare<kMxfp4Weights>(); }
cudaError_t launch_mxfp4_gemm2(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream) {
  return launch<kMxfp4Weights>(args, w2, h_split, stream);
}

}  // namespace hopper_fused
