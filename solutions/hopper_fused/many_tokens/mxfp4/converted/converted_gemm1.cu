// converted_gemm1: grouped_gemm1 with MXFP4 weights, which a warpgroup turns into E4M3 in shared memory; the same tiles,
// clusters, queues and counters (grouped_gemm1.cu), and the same main loops. What it cannot do is left to mxfp4_gemm1
// (unusual.cuh).
//
//   warps    for each of the CTA's tiles
//   8 - 11   producers, K block by K block: a thread of warp 9 loads packed W13 by TMA, kAhead K blocks early (all of the
//            tile's, or the half that this CTA converts), thread 0 the scales of x by bulk copy; all threads gather x by
//            cp.async
//   12 - 15  converters: convert_weights.cuh
//   0 - 7    consumers, two warpgroups: normal_mainloop.cuh or swap_ab_mainloop.cuh; gemm1_tile.cuh's epilogue
//
//   mbarrier         arrivals     who arrives                        who waits       what it protects
//   packed_full[p]   1, bytes     warp 9                             warps 12 - 15   packed weights are loaded
//   packed_empty[p]  4            a lane of each converter warp      warp 9          they are read
//   full[stage]      133, bytes   producer thread 0; all producer    warps 0 - 7     w, a, a_scale are there, and with
//                                 threads as their cp.asyncs end; a                  a tile's first K block reference.
//                                 lane of each converter warp                        Bytes: scales of x; the half of w
//                                                                                    that the other CTA has converted
//   empty[stage]     16           a lane of each consumer warp of    warps 8 - 15    the stage may be overwritten in
//                                 both CTAs                                          both CTAs
//   Parities are those of pipeline.cuh.
//
//   named barrier             threads   who arrives and waits   what it protects, in order of use
//   Gemm1 ...                           as in grouped_gemm1.cu
//
// It cannot deadlock, for grouped_gemm1.cu's reasons: packed stages are filled and freed within a CTA, in order.
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
#include "hopper_fused/many_tokens/mxfp4/converted/convert_weights.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/converted_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/unusual.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "hopper_fused/regimes.cuh"

namespace hopper_fused {

template <int kHSplit>
using ConvertedGemm1Smem = ConvertedSmem<1, kHSplit, kNumKBlocks1>;

// ---- producer ----

// What get_next_tile() will return; there has to be one.
__device__ __forceinline__ WorkTile next_tile(const StaticTileScheduler& scheduler, int rank) {
  return unpack_tile(scheduler.head[scheduler.long_is_next() ? 0 : 1], rank);
}

// For one thread: the packed weights of a tile's K block.
template <class Smem>
__device__ __forceinline__ void load_packed(Smem& smem, typename Smem::PackedPipeline& packed, const CUtensorMap& map,
                                            const WorkTile& tile, int k, int rank, uint64_t policy) {
  Barrier& full = smem.packed_full[packed.stage];
  uint8_t* to = smem.packed[packed.stage];
  const int group = 2 * Grouped::kW1BoxGroups * tile.n_block;
  smem.packed_empty[packed.stage].wait(packed.phase ^ 1);
  fence_proxy_async_shared();  // what was here was read by generic loads
  full.arrive_and_expect(tile.multicast_w ? kPackedBoxBytes : kPackedTileBytes);
  tma_load_5d(to, &map, full, k * kPackedRowBytes, 0, 0, group + (tile.multicast_w ? rank * Grouped::kW1BoxGroups : 0),
              tile.expert, policy);
  if (!tile.multicast_w)
    tma_load_5d(to + kPackedBoxBytes, &map, full, k * kPackedRowBytes, 0, 0, group + Grouped::kW1BoxGroups, tile.expert,
                policy);
  packed.advance();
}

// A producer thread's share of x, as cp_async_rows_of_x copies it. With 40 registers ptxas computed both addresses anew
// for each row, from constant memory, one row after the other: 900 cycles of a K block's 1800. So x's address is
// counted up, and a row's place in shared memory is an immediate.
struct Gather {
  unsigned x_offset[kRowsPerThread];
  bool all_rows;    // whether each of them is an offset
  uint64_t x;       // of the K block
  uint32_t smem_a;  // the place of the thread's vector in its first row, in stage 0

  // Copies a K block's rows.
  __device__ __forceinline__ void copy(int stage) const {
    const uint32_t to = smem_a + stage * (int)Grouped::kATileBytes;
    const auto copy_row = [&](int i) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * kRowsAtOnce * kBlockK),
                   "l"(x + x_offset[i])
                   : "memory");
    };
    if (all_rows) {
#pragma unroll
      for (int i = 0; i < kRowsPerThread; i++) copy_row(i);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRowsPerThread; i++)
      if (x_offset[i] != kNoRow) copy_row(i);
  }
  // The empty statement keeps the compiler from computing x from the number of the K block.
  __device__ __forceinline__ void next_k_block() {
    x += kBlockK;
    asm volatile("" : "+l"(x));
  }
};

// As find_rows_of_x. In a whole m_block rows that pad the expert are copies of some token's, so that no row of a K block
// needs a look at its offset.
__device__ __forceinline__ void find_rows(Gather& gather, const GroupedArgs& args, const WorkTile& tile, int row,
                                          int vector) {
  find_rows_of_x(gather.x_offset, args, tile, row, vector);
  gather.all_rows = tile.m_rows == Grouped::kBlockM;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; i++)
    if (gather.all_rows && gather.x_offset[i] == kNoRow) gather.x_offset[i] = vector * 16;
}

// For all producer threads; as load_gemm1. Two of their warps have a task each besides the gather,
// which begins with a wait and a fence: x would come that much later if one warp had both.
template <class Smem>
__device__ __forceinline__ void load_converted_gemm1(
    Smem& smem, const CUtensorMap& map, const GroupedArgs& args, const TileQueues& queues, int rank) {
  const uint64_t weight_policy = queues.experts <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  const int thread = threadIdx.x % kProducerThreads, row = thread / kVectorsPerRow, vector = thread % kVectorsPerRow;
  const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, vector * 16);
  const bool loads_scales = thread == 0, loads_packed = thread == kWarp;
  static_assert(sizeof(smem.a[0]) == Grouped::kATileBytes, "Gather::copy goes from stage to stage by it");
  Gather gather;
  gather.smem_a = smem_addr(smem.a[0][0] + at);
  if (loads_scales) fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
  typename Smem::Pipeline pipe;
  typename Smem::PackedPipeline packed;
  StaticTileScheduler scheduler(args.queue1, queues, args.clusters);
  if (loads_packed && scheduler.has_next()) {
    const WorkTile first = next_tile(scheduler, rank);
    for (int k = 0; k < Smem::kAhead; k++) load_packed(smem, packed, map, first, k, rank, weight_policy);
  }
  WorkTile tile;
  while (scheduler.get_next_tile(tile, rank)) {
    const float* x_scale = args.row_x_scale + (size_t)tile.expert_first * kNumKBlocks1 + tile.m_first;
    find_rows(gather, args, tile, row, vector);
    gather.x = (uint64_t)__cvta_generic_to_global(args.x);
#pragma unroll 1
    for (int k = 0; k < kNumKBlocks1; k++) {
      const int stage = pipe.stage;
      Barrier& full = smem.full[stage];
      smem.empty[stage].wait(pipe.phase ^ 1);
      if (loads_scales) {
        fence_proxy_async_shared();  // the scales of x that were here were read by generic loads
        full.arrive_and_expect(tile.m_rows * 4);
        bulk_load(smem.a_scale[stage], x_scale + (size_t)k * tile.expert_rows, tile.m_rows * 4, full, l2_evict_last());
      }
      __syncwarp();
      gather.copy(stage);
      cp_async_mbar_arrive(full);
      gather.next_k_block();
      if (loads_packed) {
        const int ahead = k + Smem::kAhead;
        if (ahead < kNumKBlocks1) load_packed(smem, packed, map, tile, ahead, rank, weight_policy);
        else if (scheduler.has_next())
          load_packed(smem, packed, map, next_tile(scheduler, rank), ahead - kNumKBlocks1, rank,
                      weight_policy);
      }
      pipe.advance();
    }
  }
}

// ---- converter ----

constexpr int kL2LineBytes = 128;

template <class Smem>
__device__ __forceinline__ void convert_gemm1(Smem& smem, const GroupedArgs& args, const TileQueues& queues, int rank) {
  WeightConverter<kNumKBlocks1, Smem> converter(smem, unusual_flag(args.counters), rank);
  StaticTileScheduler scheduler(args.queue1, queues, args.clusters);
  WorkTile tile;
  while (scheduler.get_next_tile(tile, rank)) {
    const uint8_t* scales = w13_row_scales(args, tile, threadIdx.x % kConverterThreads);
    if (scheduler.has_next()) {
      // the next tile begins with a look at all of its scales
      const uint8_t* next = w13_row_scales(args, next_tile(scheduler, rank), threadIdx.x % kConverterThreads);
#pragma unroll
      for (int at = 0; at < kW13RowScales; at += kL2LineBytes) {
        prefetch_l2(next + at);
        prefetch_l2(next + kSecondRowScales + at);
      }
    }
    converter.convert_tile(scales, scales + kSecondRowScales, tile.multicast_w);
  }
}

// ---- consumer ----

template <int kHSplit, class Smem>
__device__ __forceinline__ void converted_gemm1_normal(Smem& smem, const GroupedArgs& args,
                                                       typename Smem::Pipeline& pipe, const WorkTile& tile,
                                                       const uint8_t* reference, int warpgroup) {
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const auto read = [&](int, int stage) {
    const float x0 = smem.a_scale[stage][row], x1 = smem.a_scale[stage][row + 8];
    return NormalScales{{{x0, x1}, {x0, x1}}};
  };
  gemm1_normal<kHSplit>(smem, args, tile, warpgroup, [&](float(&sum)[kNormalSums]) {
    normal_mainloop<1, kNumKBlocks1, true>(smem, pipe, sum, warpgroup, read, [](int) { return 0; });
    scale_normal(sum, reference);
  });
}

template <int kHSplit, class Smem>
__device__ __forceinline__ void converted_gemm1_swap_ab(Smem& smem, const GroupedArgs& args,
                                                        typename Smem::Pipeline& pipe, const WorkTile& tile,
                                                        const uint8_t* reference, int warpgroup) {
  dispatch_swap_ab_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    converted_swap_ab<N, 1, kNumKBlocks1, true>(smem, pipe, sum, warpgroup, [](auto&) {});
    scale_swap_ab<N>(sum, reference, warpgroup);
    swiglu_quant_swap_ab<N, kHSplit>(smem, args, tile, sum, warpgroup);
  });
}

// ---- kernel ----

template <int kHSplit>
__global__ void __launch_bounds__(kConvertedGemmThreads, 1)
    converted_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ GroupedArgs args) {
  using Smem = ConvertedGemm1Smem<kHSplit>;
  if (threadIdx.x == 0) prefetch_tma_descriptor(&map);
  Smem& smem = init_converted_gemm<Smem>(1 + kProducerThreads);
  pdl_wait();
  pdl_launch_dependents();
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (blockIdx.x == 0 && threadIdx.x == 0) args.counters->grid_barrier = 0;  // for the next layer's route_permute
  if (warp >= kFirstConverterWarp) {
    warpgroup_reg_dealloc<kConverterRegs>();
    convert_gemm1(smem, args, queues, rank);
  } else if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kConvertedProducerRegs>();
    load_converted_gemm1(smem, map, args, queues, rank);
  } else {
    warpgroup_reg_alloc<kConvertedConsumerRegs>();
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    typename Smem::Pipeline pipe;
    PipelineState<Smem::kReferences> references;
    WorkTile tile;
    StaticTileScheduler scheduler(args.queue1, queues, args.clusters);
    if (!scheduler.has_next()) signal_h_ready(&args.counters->h_ready_except_last_wave);  // a cluster without a tile
    while (scheduler.get_next_tile(tile, rank)) {
      if (!scheduler.has_next()) signal_h_ready(&args.counters->h_ready_except_last_wave);
      const uint8_t* reference = smem.reference[references.stage];
      if (tile.normal) converted_gemm1_normal<kHSplit>(smem, args, pipe, tile, reference, warpgroup);
      else converted_gemm1_swap_ab<kHSplit>(smem, args, pipe, tile, reference, warpgroup);
      references.advance();
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
    const cudaError_t error = cudaFuncSetAttribute(converted_gemm1<1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   sizeof(ConvertedGemm1Smem<1>));
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(converted_gemm1<2>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(ConvertedGemm1Smem<2>));
  }
  return cudaSuccess;
}
template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  if constexpr (kUsed)
    return launch_with_pdl(h_split == 1 ? converted_gemm1<1> : converted_gemm1<2>, Grouped::kClusterCtas * args.clusters,
                           kConvertedGemmThreads, clusters_of(Grouped::kClusterCtas),
                           h_split == 1 ? sizeof(ConvertedGemm1Smem<1>) : sizeof(ConvertedGemm1Smem<2>), stream, w1,
                           args);
  return cudaErrorNotSupported;
}

cudaError_t prepare_converted_gemm1() { return prepare<kConvertsWeights>(); }
cudaError_t launch_converted_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream) {
  return launch<kConvertsWeights>(args, w1, h_split, stream);
}

}  // namespace hopper_fused
