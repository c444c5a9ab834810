// converted_gemm2: grouped_gemm2 with MXFP4 weights, which a warpgroup turns into E4M3 in shared memory; the same tiles,
// clusters, queue and counters (grouped_gemm2.cu), and the same main loops. What it cannot do is left to mxfp4_gemm2
// (unusual.cuh).
//
//   warps    for each of the CTA's tiles
//   8        producer, by one lane, K block by K block: packed W2 by TMA, kAhead K blocks early (all of the tile's, or
//            the half that this CTA converts); h and its scales by bulk copy, once gemm1 has stored them. Some K blocks
//            before a tile's end CTA 0 sends the cluster's next tile to both CTAs
//   9 - 11   no tiles: they zero the output of tokens without rows, which combine skips
//   12 - 15  converters: convert_weights.cuh
//   0 - 7    consumers, two warpgroups: normal_mainloop.cuh or swap_ab_mainloop.cuh; gemm2_tile.cuh's epilogue
//
//   mbarrier         arrivals   who arrives                     who waits       what it protects
//   packed_full[p]   1, bytes   warp 8                          warps 12 - 15   packed weights are loaded
//   packed_empty[p]  4          a lane of each converter warp   warp 8          they are read
//   full[stage]      5, bytes   warp 8; a lane of each          warps 0 - 7     w, a, a_scale are there, and with a
//                               converter warp                                  tile's first K block reference. Bytes: h,
//                                                                               its scales; the half of w that the other
//                                                                               CTA has converted
//   empty[stage]     16         a lane of each consumer warp    warps 8, 12 -   the stage may be overwritten in both
//                               of both CTAs                    15              CTAs
//   tile_full[i]     1, bytes   warp 8; CTA 0 sends the bytes   warps 0 - 8,    tile_entry[i] is written
//                                                               12 - 15
//   Parities are those of pipeline.cuh, and of DynamicTileScheduler.
//
//   named barrier           threads   who arrives and waits   what it protects, in order of use
//   Gemm2 ...                         as in grouped_gemm2.cu
//
// tile_entry[i] is overwritten when both CTAs' consumers have released the K block that was kStages before the one that
// is loaded next; the others are not behind them.
// It cannot deadlock, for grouped_gemm2.cu's reasons: packed stages are filled and freed within a CTA, in order, and the
// next tile is sent before packed weights of it are waited for.
#include <cuda.h>

#include <cstdint>

#include "common/cuda/host/launch.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/layer/weights.cuh"
#include "hopper_fused/many_tokens/gemm2_queue.cuh"
#include "hopper_fused/many_tokens/gemm2_tile.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/convert_weights.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/converted_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/unusual.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "hopper_fused/regimes.cuh"

namespace hopper_fused {

template <int kHSplit>
using ConvertedGemm2Smem = ConvertedSmem<kHSplit, 2, kNumKBlocks2>;

// ---- producer ----

// For warp 8's first lane: the packed weights of a tile's K block.
template <class Smem>
__device__ __forceinline__ void load_packed(Smem& smem, typename Smem::PackedPipeline& packed, const CUtensorMap& map,
                                            const GroupedArgs& args, const WorkTile& tile, int k, int rank,
                                            uint64_t policy) {
  Barrier& full = smem.packed_full[packed.stage];
  uint8_t* to = smem.packed[packed.stage];
  const int row = tile.expert * kHidden + args.first_column + tile.n_block * Grouped::kBlockN;
  smem.packed_empty[packed.stage].wait(packed.phase ^ 1);
  fence_proxy_async_shared();  // what was here was read by generic loads
  full.arrive_and_expect(tile.multicast_w ? kPackedBoxBytes : kPackedTileBytes);
  tma_load_2d(to, &map, full, k * kPackedRowBytes, row + (tile.multicast_w ? rank * kHalfTile : 0), policy);
  if (!tile.multicast_w)
    tma_load_2d(to + kPackedBoxBytes, &map, full, k * kPackedRowBytes, row + kHalfTile, policy);
  packed.advance();
}

// Brings a tile's scales to L2, where all of its rows exist and are aligned: converters begin with a look at all of them.
__device__ __forceinline__ void prefetch_scales(const GroupedArgs& args, const WorkTile& tile) {
  if (kPadsColumns || kW2RowScales % 16 != 0) return;
  const int row = tile.expert * kHidden + args.first_column + tile.n_block * Grouped::kBlockN;
  bulk_prefetch(w2_row_scales(args, row), Grouped::kBlockN * kW2RowScales);
}

// For warp 8's first lane; as load_gemm2.
template <int kHSplit, class Smem>
__device__ __forceinline__ void load_converted_gemm2(Smem& smem, const CUtensorMap& map, const GroupedArgs& args,
                                                     int rank) {
  // The K block before which the next tile is sent: the entry that was drawn at the tile's beginning has come by then.
  constexpr int kSendAt = kNumKBlocks2 > Smem::kAhead + 2 ? kNumKBlocks2 - Smem::kAhead - 2 : 0;
  constexpr int kTilesBehind = (Smem::kStages + kNumKBlocks2 - 1) / kNumKBlocks2;  // that consumers are at most
  static_assert(kTilesBehind + 1 < Grouped::kSchedulerStages, "the entry that is overwritten has been read");
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int entries = entries_of_pass(queues, args);
  const bool few_rows = queues.rows <= queues.experts * kEvictFirstRows, first_pass = args.first_column == 0;
  const uint64_t weight_policy = few_rows ? l2_evict_first() : l2_evict_unchanged();
  const uint64_t h_policy = l2_evict_last();
  enum { kNothing, kExceptLastWave, kAll } h_ready = kNothing;  // what is known to be stored of h
  typename Smem::Pipeline pipe;
  typename Smem::PackedPipeline packed;
  WorkTile tile;
  const DynamicTileScheduler<Smem> scheduler{smem, args.queue2, entries, rank};
  bool is_tile = scheduler.get_tile(tile, 0);
  for (int k = 0; is_tile && k < Smem::kAhead; k++) load_packed(smem, packed, map, args, tile, k, rank, weight_policy);
  if (!first_pass) pdl_wait();  // this pass's combine starts when the previous one's is over
  pdl_launch_dependents();      // one warp does it for the CTA
  for (int nth = 0; is_tile; nth++) {
    int position = 0;  // of the next entry: requested now, used later
    if (rank == 0)
      position = args.clusters + atomicAdd(&args.counters->next_entry[args.first_column / args.y_columns], 1u);
    const auto h_needed = tile.before_last_wave ? kExceptLastWave : kAll;
    if (h_ready < h_needed) {
      counter_wait(h_needed == kAll ? &args.counters->h_ready : &args.counters->h_ready_except_last_wave,
                   args.clusters * Grouped::kClusterCtas * kConsumerWarpgroups);
      fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
      h_ready = h_needed;
    }
    const uint8_t* h = args.h + (size_t)tile.expert_first * Grouped::kPaddedIntermediate * kHSplit + tile.m_first * kBlockK;
    const float* h_scale = args.h_scale + (size_t)tile.expert_first * Grouped::kNumNBlocks1 + tile.m_first;
    WorkTile next;
    bool is_next = false;
#pragma unroll 1
    for (int k = 0; k < kNumKBlocks2; k++) {
      const int stage = pipe.stage;
      Barrier& full = smem.full[stage];
      smem.empty[stage].wait(pipe.phase ^ 1);
      fence_proxy_async_shared();  // the scales of h that were here were read by generic loads
      full.arrive_and_expect(tile.m_rows * (kHSplit * kBlockK + 4));
      for (int part = 0; part < kHSplit; part++)
        bulk_load(smem.a[stage][part], h + (size_t)(k * kHSplit + part) * tile.expert_rows * kBlockK,
                  tile.m_rows * kBlockK, full, h_policy);
      bulk_load(smem.a_scale[stage], h_scale + (size_t)k * tile.expert_rows, tile.m_rows * 4, full, h_policy);
      if (k == kSendAt)
        scheduler.publish(rank == 0 ? queue_entry(args.queue2, entries, position) : make_uint2(kNoTile, 0), nth);
      const int ahead = k + Smem::kAhead;
      if (ahead == kNumKBlocks2) {
        is_next = scheduler.get_tile(next, nth + 1);
        if (is_next) prefetch_scales(args, next);
      }
      if (ahead < kNumKBlocks2) load_packed(smem, packed, map, args, tile, ahead, rank, weight_policy);
      else if (is_next) load_packed(smem, packed, map, args, next, ahead - kNumKBlocks2, rank, weight_policy);
      pipe.advance();
    }
    tile = next;
    is_tile = is_next;
  }
}

// ---- converter ----

template <class Smem>
__device__ __forceinline__ void convert_gemm2(Smem& smem, const GroupedArgs& args, int rank) {
  WeightConverter<kNumKBlocks2, Smem> converter(smem, unusual_flag(args.counters), rank);
  const int entries = entries_of_pass(read_tile_queues(&args.counters->queues), args);
  const DynamicTileScheduler<Smem> scheduler{smem, args.queue2, entries, rank};
  WorkTile tile;
  for (int nth = 0; scheduler.get_tile(tile, nth); nth++) {
    const int row = tile.expert * kHidden + args.first_column + tile.n_block * Grouped::kBlockN +
                    threadIdx.x % kConverterThreads;
    converter.convert_tile(w2_row_scales(args, row), w2_row_scales(args, row + kHalfTile), tile.multicast_w);
  }
}

// ---- consumer ----

// The most that sums of a K block can be, with scales of 1 in h, by a warp: for weight rows with these references.
__device__ __forceinline__ float k_block_bound(const uint8_t* reference) {
  constexpr float kMost = 6.0f * 448.0f * kBlockK;
  static_assert(kBlockK == 4 * kWarp, "a lane has four references");
  const uint32_t word = reinterpret_cast<const uint32_t*>(reference)[threadIdx.x % kWarp];
  int most = max(max(word & 255, word >> 8 & 255), max(word >> 16 & 255, word >> 24));
  most = __reduce_max_sync(kFullWarp, most);
  return kMost * e8m0_value(most + kExponents - 1);
}

template <int kHSplit, class Smem>
__device__ __forceinline__ void converted_gemm2_normal(Smem& smem, typename Smem::Pipeline& pipe, const WorkTile& tile,
                                                       const uint8_t* reference, uint16_t* y, float* y_scale,
                                                       int y_columns, int warpgroup) {
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  float sum[kNormalSums], scales[2] = {}, bound[2][2] = {};
  const auto read = [&](int, int stage) {
    const float h0 = smem.a_scale[stage][row], h1 = smem.a_scale[stage][row + 8];
    if constexpr (kHSplit == 2) {
      scales[0] += fabsf(h0);
      scales[1] += fabsf(h1);
    }
    return NormalScales{{{h0, h1}, {h0, h1}}};
  };
  normal_mainloop<kHSplit, kNumKBlocks2, false>(smem, pipe, sum, warpgroup, read, [](int) { return 0; });
  scale_normal(sum, reference);
  if constexpr (kHSplit == 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float most = k_block_bound(reference + half * kHalfTile);
      bound[half][0] = scales[0] * most;
      bound[half][1] = scales[1] * most;
    }
  }
  store_normal<kHSplit>(smem.d[warpgroup], tile, sum, bound, y, y_scale, y_columns, warpgroup);
}

template <int kHSplit, class Smem>
__device__ __forceinline__ void converted_gemm2_swap_ab(Smem& smem, typename Smem::Pipeline& pipe,
                                                        const WorkTile& tile, const uint8_t* reference, uint16_t* y,
                                                        float* y_scale, int y_columns, int warpgroup) {
  dispatch_swap_ab_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    [[maybe_unused]] float2 scales[N / 8] = {};
    const auto add_scales = [&](const float2(&h)[N / 8]) {
      if constexpr (kHSplit == 2) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          scales[j].x += fabsf(h[j].x);
          scales[j].y += fabsf(h[j].y);
        }
      }
    };
    converted_swap_ab<N, kHSplit, kNumKBlocks2, false>(smem, pipe, sum, warpgroup, add_scales);
    scale_swap_ab<N>(sum, reference, warpgroup);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
    [[maybe_unused]] const float most = kHSplit == 2 ? k_block_bound(reference + warpgroup * kHalfTile) : 1.0f;
    float2 inverse[N / 8];  // of the scales of rows 8 j + 2 (lane % 4) and the next one
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      inverse[j] = {1.0f, 1.0f};
      if constexpr (kHSplit == 2) {
        const float2 scale = {fp16_scale(scales[j].x * most), fp16_scale(scales[j].y * most)};
        if (warp == 0 && lane < kQuad) {
          float* to = y_scale + (size_t)(8 * j + 2 * lane) * (y_columns / kBlockK) + warpgroup;
          to[0] = scale.x;
          to[y_columns / kBlockK] = scale.y;
        }
        inverse[j] = {inverse_power_of_two(scale.x), inverse_power_of_two(scale.y)};
      }
    }
    store_swap_ab<N, kHSplit>(smem.d[warpgroup], sum, inverse, y, y_columns, N, warpgroup, warp, lane);
  });
}

// ---- kernel ----

template <int kHSplit>
__global__ void __launch_bounds__(kConvertedGemmThreads, 1)
    converted_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ GroupedArgs args) {
  using Smem = ConvertedGemm2Smem<kHSplit>;
  Smem& smem = init_converted_gemm<Smem>(1);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (warp >= kFirstConverterWarp) {
    warpgroup_reg_dealloc<kConverterRegs>();
    convert_gemm2(smem, args, rank);
  } else if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kConvertedProducerRegs>();
    if (warp == kConsumerWarps) {
      if (threadIdx.x % kWarp == 0) load_converted_gemm2<kHSplit>(smem, map, args, rank);
    } else if (kSomeWithoutRows && args.first_column == 0) {
      zero_tokens_without_rows(args);
    }
  } else {
    warpgroup_reg_alloc<kConvertedConsumerRegs>();
    if (args.first_column > 0) pdl_wait();  // the previous pass's combine has read the y that this pass overwrites
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    typename Smem::Pipeline pipe;
    PipelineState<Smem::kReferences> references;
    WorkTile tile;
    const int entries = entries_of_pass(read_tile_queues(&args.counters->queues), args);
    const DynamicTileScheduler<Smem> scheduler{smem, args.queue2, entries, rank};
    for (int nth = 0; scheduler.get_tile(tile, nth); nth++) {
      const int row = tile.expert_first + tile.m_first, column = tile.n_block * Grouped::kBlockN;
      uint16_t* y = args.y + (size_t)row * args.y_columns + column;
      float* y_scale = args.y_scale + (size_t)row * (args.y_columns / kBlockK) + column / kBlockK;
      const uint8_t* reference = smem.reference[references.stage];
      if (tile.normal)
        converted_gemm2_normal<kHSplit>(smem, pipe, tile, reference, y, y_scale, args.y_columns, warpgroup);
      else
        converted_gemm2_swap_ab<kHSplit>(smem, pipe, tile, reference, y, y_scale, args.y_columns, warpgroup);
      references.advance();
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
    const cudaError_t error = cudaFuncSetAttribute(converted_gemm2<1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   sizeof(ConvertedGemm2Smem<1>));
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(converted_gemm2<2>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(ConvertedGemm2Smem<2>));
  }
  return cudaSuccess;
}
template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream) {
  if constexpr (kUsed)
    return launch_with_pdl(h_split == 1 ? converted_gemm2<1> : converted_gemm2<2>, Grouped::kClusterCtas * args.clusters,
                           kConvertedGemmThreads, clusters_of(Grouped::kClusterCtas),
                           h_split == 1 ? sizeof(ConvertedGemm2Smem<1>) : sizeof(ConvertedGemm2Smem<2>), stream, w2,
                           args);
  return cudaErrorNotSupported;
}

cudaError_t prepare_converted_gemm2() { return prepare<kConvertsWeights>(); }
cudaError_t launch_converted_gemm2(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream) {
  return launch<kConvertsWeights>(args, w2, h_split, stream);
}

}  // namespace hopper_fused
