// few_rows_gemm1: grouped_gemm1 for batches in which no expert has more than kRowAlign rows.
//
// With few experts that have rows, there are fewer tiles of 256 weight rows than SMs. Here four CTAs, a cluster, share
// such a tile: each has 64 of its weight rows, and so 32 columns of h. Sums are in grouped_gemm1's order, so results
// are the same to the last bit. h has one scale for each row and the tile's 128 columns, for which the CTAs send each
// other their rows' maxima.
//
//   warps    for each of the cluster's tiles: cluster c takes tiles c, c + clusters, ...
//   0 - 3    consumers, a warpgroup: wgmma, swap-AB, of two K blocks the second's while the first is added; SwiGLU, the
//            exchange of maxima, FP8, h and its scales to memory
//   4        producer, one lane: W13 by TMA, the scales of x by bulk copy
//   5        producer: x from the tokens' rows by cp.async, swizzled on the way
//
//   mbarrier            arrivals    who arrives                    who waits      what it protects
//   full[stage]         33, bytes   warp 4 (1), threads of warp 5  warps 0 - 3    w, x, x_scale are loaded
//   empty[stage]        4           a lane of each consumer warp   warps 4, 5     the stage may be overwritten
//   maxima_full[tile    1, bytes    thread 0; the bytes are those  warps 0 - 3    maxima[tile % 2] are written. A CTA
//               % 2]                of all four CTAs                              sends those of tile + 2 when it has
//                                                                                 all of tile + 1, which the others
//                                                                                 sent after reading these
//   Parities are those of pipeline.cuh; of maxima_full tile / 2 % 2.
//
//   named barrier   threads   what it protects
//   StoredBarrier   128       h of all tiles is stored before it is counted
//
//   global counters           who arrives                          who waits   what it protects
//   h_ready_except_last_wave  every CTA when all its h is stored;  gemm2       h of all tiles
//   and h_ready               CTA 0 for the arrivals that gemm2
//                             expects of grouped_gemm1 beyond those
//
// It cannot deadlock: the CTAs of a cluster are resident together and go through the same tiles, and none waits for
// another cluster.
#include "hopper_fused_invariant/few_rows_gemm1.cuh"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "hopper_fused/many_tokens/gemm1_tile.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// ---- sizes ----

constexpr int kCtas = 4;                                 // of a cluster
constexpr int kRows = Grouped::kRowAlign;                         // wgmma's N
constexpr int kCtaColumns = kBlockK / kCtas;             // of h
constexpr int kFewRowsThreads = kWarpgroupThreads + 2 * kWarp;
constexpr int kFewRowsStages = 16;                       // 160 KB in flight
constexpr int kWBytes = kMmaM * kBlockK, kXBytes = kRows * kBlockK;
constexpr int kXVectors = kBlockK / 16;                  // 16-byte vectors of a row's K block
constexpr int kMaximaBytes = kCtas * kWarpgroupWarps * kRows * (int)sizeof(float);
static_assert(2 * kCtaColumns == kMmaM, "a CTA's up and gate columns are one m64");

// ---- shared memory ----

struct FewRowsSmem {
  uint8_t w[kFewRowsStages][kWBytes];
  uint8_t x[kFewRowsStages][kXBytes];
  float x_scale[kFewRowsStages][kRows];
  int maxima[2][kCtas * kWarpgroupWarps][kRows];  // floats' bits: [tile % 2][warp of the cluster][row]
  Barrier full[kFewRowsStages], empty[kFewRowsStages];
  Barrier maxima_full[2];
};
static_assert(sizeof(FewRowsSmem) <= kSmemLimit, "a CTA has 227 KB of shared memory");
using FewRowsPipeline = PipelineState<kFewRowsStages>;

using StoredBarrier = NamedBarrier<1, kWarpgroupThreads>;

// ---- tiles ----

// The cluster's nth tile of 128 columns of h; false behind the last. A queue entry is two tiles, which with kOddNBlocks
// may be of two experts. Where one only pads I it computes a tile again, and nobody reads its h.
__device__ __forceinline__ bool get_tile(const GroupedArgs& args, const TileQueues& queues, int nth, WorkTile& tile) {
  const int i = nth * (gridDim.x / kCtas) + blockIdx.x / kCtas;
  constexpr int kEntryTiles = Grouped::kOddNBlocks ? 1 : 2;  // that a uint2 of the queue stands for
  const int entries = gemm1_entries(queues.short_entries) * (2 / kEntryTiles);
  const uint2 entry = queue_entry(args.queue1, entries, i / kEntryTiles);
  tile = unpack_tile(entry, i % 2);
  return entry.x != kNoTile;
}
__device__ __forceinline__ int weight_n_block(const WorkTile& tile) { return min(tile.n_block, kNumKBlocks2 - 1); }

// ---- producers ----

// For one thread: loads the weights, and the scales of x, of all of the cluster's tiles. TMA's coordinates are K, row
// in its group of 8, half of W13, group of 8, expert.
__device__ __forceinline__ void load_w_and_scales(
    FewRowsSmem& smem, const CUtensorMap& map, const GroupedArgs& args, const TileQueues& queues, int rank) {
  const uint64_t weight_policy = l2_evict_first(), scale_policy = l2_evict_last();
  fence_proxy_async_global();  // scales were written by generic stores and are read by bulk copies
  FewRowsPipeline pipe;
  WorkTile tile;
  for (int nth = 0; get_tile(args, queues, nth, tile); nth++) {
    const float* x_scale = args.row_x_scale + (size_t)tile.expert_first * kNumKBlocks1;
    const int group = (weight_n_block(tile) * kCtas + rank) * (kCtaColumns / kAtomRows);
    for (int k = 0; k < kNumKBlocks1; k++, pipe.advance()) {
      Barrier& full = smem.full[pipe.stage];
      smem.empty[pipe.stage].wait(pipe.phase ^ 1);
      fence_proxy_async_shared();  // the scales of x that were here were read by generic loads
      full.arrive_and_expect(kWBytes + kRows * 4);
      tma_load_5d(smem.w[pipe.stage], &map, full, k * kBlockK, 0, 0, group, tile.expert, weight_policy);
      bulk_load(smem.x_scale[pipe.stage], x_scale + (size_t)k * tile.expert_rows, kRows * 4, full, scale_policy);
    }
  }
}

// For a whole warp: a lane copies one 16-byte vector of every fourth row. Copies of the last kInFlight K blocks may be
// on their way. Older ones are in, and a proxy fence here makes them visible to wgmma; in the consumers it would stall
// every K block.
__device__ __forceinline__ void gather_x(FewRowsSmem& smem, const GroupedArgs& args, const TileQueues& queues) {
  constexpr int kRowsAtOnce = kWarp / kXVectors, kInFlight = kFewRowsStages / 2;
  const int row = threadIdx.x % kWarp / kXVectors, vector = threadIdx.x % kXVectors;
  FewRowsPipeline pipe;
  int issued = 0;
  WorkTile tile;
  const auto arrive = [&](int k_block) {
    fence_proxy_async_shared();
    smem.full[k_block % kFewRowsStages].arrive();
  };
  for (int nth = 0; get_tile(args, queues, nth, tile); nth++) {
    const uint8_t* x[kRows / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; i++) {
      // An expert's rows are in order of token, so in any but the first row token 0 means padding. Then nothing is
      // copied: what lies there is multiplied into that row's results alone.
      const int r = i * kRowsAtOnce + row, token = args.row_token[tile.expert_first + r];
      x[i] = r == 0 || token > 0 ? args.x + (size_t)token * kHidden + 16 * vector : nullptr;
    }
    for (int k = 0; k < kNumKBlocks1; k++, pipe.advance(), issued++) {
      smem.empty[pipe.stage].wait(pipe.phase ^ 1);
#pragma unroll
      for (int i = 0; i < kRows / kRowsAtOnce; i++) {
        const int r = i * kRowsAtOnce + row;
        if (x[i])
          cp_async_16(smem.x[pipe.stage] + r / kAtomRows * kAtomBytes + swizzle_128b(r % kAtomRows, 16 * vector),
                      x[i] + k * kBlockK);
      }
      cp_async_commit();
      cp_async_wait<kInFlight>();
      if (issued >= kInFlight) arrive(issued - kInFlight);
    }
  }
  cp_async_wait_all();
  for (int k_block = max(0, issued - kInFlight); k_block < issued; k_block++) arrive(k_block);
}

// ---- consumers ----

// sum += accum * scales, for all K blocks: as swap_ab_mainloop, with the same order of sums. Two K blocks at a time.
__device__ __forceinline__ void few_rows_mainloop(FewRowsSmem& smem, const GroupedArgs& args, const WorkTile& tile,
                                                  FewRowsPipeline& pipe, float (&sum)[kRows / 2]) {
  const float* first = args.w1_scale + (size_t)(tile.expert * 2 * kNumKBlocks2 + weight_n_block(tile)) * kNumKBlocks1;
  const float* second = first + (size_t)kNumKBlocks2 * kNumKBlocks1;
  if (threadIdx.x * 32 < kNumKBlocks1) prefetch_l2(first + 32 * threadIdx.x), prefetch_l2(second + 32 * threadIdx.x);
#pragma unroll
  for (int i = 0; i < kRows / 2; i++) sum[i] = 0.0f;
  const auto issue = [&](int stage, int phase, float(&accum)[kRows / 2]) {
    smem.full[stage].wait(phase);
    warpgroup_arrive();
    mma_k_block<kRows>(accum, make_smem_desc(smem.w[stage], kAtomBytes), make_smem_desc(smem.x[stage], kAtomBytes),
                       true);
    warpgroup_commit_batch();
  };
  // The scales of x are read while the wgmmas run.
  float2 a[2][kRows / 8];
  const auto read_scales = [&](int stage, float2(&a)[kRows / 8]) {
#pragma unroll
    for (int j = 0; j < kRows / 8; j++)
      a[j] = *reinterpret_cast<const float2*>(smem.x_scale[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
  };
  const auto promote = [&](int k, const float(&accum)[kRows / 2], const float2(&a)[kRows / 8]) {
    const float w_first = __ldg(first + k), w_second = __ldg(second + k);
#pragma unroll
    for (int j = 0; j < kRows / 8; j++) {
      sum[4 * j + 0] += accum[4 * j + 0] * (a[j].x * w_first);
      sum[4 * j + 1] += accum[4 * j + 1] * (a[j].y * w_first);
      sum[4 * j + 2] += accum[4 * j + 2] * (a[j].x * w_second);
      sum[4 * j + 3] += accum[4 * j + 3] * (a[j].y * w_second);
    }
  };
  float accum[2][kRows / 2];
  for (int k = 0; k + 1 < kNumKBlocks1; k += 2) {
    const int stage = pipe.stage;
    issue(stage, pipe.phase, accum[0]);
    pipe.advance();
    issue(pipe.stage, pipe.phase, accum[1]);
    read_scales(stage, a[0]);
    read_scales(pipe.stage, a[1]);
    warpgroup_wait<1>();
    warpgroup_fence_operand(accum[0]);
    smem.empty[stage].release_by_warp(a);
    promote(k, accum[0], a[0]);
    warpgroup_wait<0>();
    warpgroup_fence_operand(accum[1]);
    smem.empty[pipe.stage].release_by_warp(a);
    promote(k + 1, accum[1], a[1]);
    pipe.advance();
  }
  if constexpr (kNumKBlocks1 % 2 == 1) {
    issue(pipe.stage, pipe.phase, accum[0]);
    read_scales(pipe.stage, a[0]);
    warpgroup_wait<0>();
    warpgroup_fence_operand(accum[0]);
    smem.empty[pipe.stage].release_by_warp(a[0]);
    promote(kNumKBlocks1 - 1, accum[0], a[0]);
    pipe.advance();
  }
}

// A thread has one column of h, of rows 8 j + 2 (lane % 4) + p. The threads that have the tile's first column write the
// scales of h, so they also read the rows' routing weights.
__device__ __forceinline__ int column_in_tile(int rank) {
  return rank * kCtaColumns + 8 * (threadIdx.x / kWarp) + threadIdx.x % kWarp / kQuad;
}
__device__ __forceinline__ void read_row_weights(const GroupedArgs& args, const WorkTile& tile, int rank,
                                                 float (&weight)[kRows / 8][2]) {
  if (column_in_tile(rank) != 0) return;
#pragma unroll
  for (int j = 0; j < kRows / 8; j++)
#pragma unroll
    for (int p = 0; p < 2; p++)
      weight[j][p] = args.row_weight[tile.expert_first + 8 * j + 2 * (threadIdx.x % kQuad) + p];
}

template <int kHSplit>
__device__ __forceinline__ void few_rows_swiglu_quant(
    FewRowsSmem& smem, const GroupedArgs& args, const WorkTile& tile, float (&sum)[kRows / 2],
    const float (&weight)[kRows / 8][2], int rank, int nth) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, buffer = nth % 2;
  if (threadIdx.x == 0) smem.maxima_full[buffer].arrive_and_expect(kMaximaBytes);
  float amax[kRows / 8][2];
#pragma unroll
  for (int j = 0; j < kRows / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {  // sums 2 apart are the column's halves of W13
      sum[4 * j + p] = swiglu_of_halves(sum[4 * j + p], sum[4 * j + 2 + p]);
      amax[j][p] = fmaxf(0.0f, fabsf(sum[4 * j + p]));
#pragma unroll
      for (int d = kQuad; d < kWarp; d *= 2) amax[j][p] = fmaxf(amax[j][p], __shfl_xor_sync(kFullWarp, amax[j][p], d));
      // the lanes of a quad send their rows; of the eight quads four do, each to one CTA
      if (lane / kQuad < kCtas)
        st_async_cluster(&smem.maxima[buffer][kWarpgroupWarps * rank + warp][8 * j + 2 * (lane % kQuad) + p],
                         __float_as_int(amax[j][p]), smem.maxima_full[buffer], lane / kQuad);
    }
  }
  smem.maxima_full[buffer].wait(nth / 2 % 2);
  const int column = column_in_tile(rank);
#pragma unroll
  for (int j = 0; j < kRows / 8; j++) {
    float inverse[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int row = 8 * j + 2 * (lane % kQuad) + p;
      float most = 0.0f;
#pragma unroll
      for (int w = 0; w < kCtas * kWarpgroupWarps; w++)
        most = fmaxf(most, __int_as_float(smem.maxima[buffer][w][row]));
      const float scale = row_scale(most);
      inverse[p] = rcp_approx(scale);
      if (column == 0) h_scale_tile(args, tile)[row] = scale * weight[j][p];
    }
    uint16_t q[kHSplit];  // of two rows
    quantise_fp8<kHSplit>(q, sum[4 * j] * inverse[0], sum[4 * j + 1] * inverse[1]);
#pragma unroll
    for (int part = 0; part < kHSplit; part++) {
      uint8_t* h = h_tile<kHSplit>(args, tile, part) + j * kAtomBytes;
#pragma unroll
      for (int p = 0; p < 2; p++) h[swizzle_128b(2 * (lane % kQuad) + p, column)] = q[part] >> 8 * p;
    }
  }
}

// ---- kernel ----

// Arrives at both counters for this CTA. CTA 0 adds so much that all CTAs' arrivals are as many as gemm2 waits for.
__device__ __forceinline__ void signal_all_h_ready(const GroupedArgs& args) {
  const unsigned wanted = args.clusters * Grouped::kClusterCtas * kConsumerWarpgroups;
  const unsigned mine = blockIdx.x == 0 ? wanted - (gridDim.x - 1) : 1;
  for (unsigned* counter : {&args.counters->h_ready_except_last_wave, &args.counters->h_ready})
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(mine) : "memory");
}

template <int kHSplit>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    few_rows_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) uint8_t few_rows_smem[];
  FewRowsSmem& smem = *reinterpret_cast<FewRowsSmem*>(few_rows_smem);
  const int rank = block_rank_in_cluster(), warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) {
    prefetch_tma_descriptor(&map);
    for (int i = 0; i < kFewRowsStages; i++) {
      smem.full[i].init(1 + kWarp);
      smem.empty[i].init(kWarpgroupWarps);
    }
    for (int i = 0; i < 2; i++) smem.maxima_full[i].init(1);
    fence_barrier_init();
  }
  __syncthreads();
  cluster_sync();
  pdl_wait();
  pdl_launch_dependents();
  const TileQueues queues = read_tile_queues(&args.counters->queues);
  if (blockIdx.x == 0 && threadIdx.x == 0) args.counters->grid_barrier = 0;  // for the next layer's route_permute
  if (warp == kWarpgroupWarps) {
    if (threadIdx.x % kWarp == 0) load_w_and_scales(smem, map, args, queues, rank);
  } else if (warp > kWarpgroupWarps) {
    gather_x(smem, args, queues);
  } else {
    FewRowsPipeline pipe;
    WorkTile tile;
    for (int nth = 0; get_tile(args, queues, nth, tile); nth++) {
      float sum[kRows / 2], weight[kRows / 8][2];
      read_row_weights(args, tile, rank, weight);  // arrive during the main loop
      few_rows_mainloop(smem, args, tile, pipe, sum);
      few_rows_swiglu_quant<kHSplit>(smem, args, tile, sum, weight, rank, nth);
    }
    StoredBarrier::sync();
    if (threadIdx.x == 0) signal_all_h_ready(args);
  }
  __syncwarp();
  cluster_sync();  // another CTA may still send maxima to this one
}

// ---- host ----

// How many clusters run at once. It is also how many are launched: one more would begin its tiles only when others are
// done with all of theirs.
static std::atomic<int> resident_clusters{1 << 30};

static cudaLaunchConfig_t few_rows_config(int ctas, cudaLaunchAttribute& attribute) {
  attribute = clusters_of(kCtas);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kFewRowsThreads);
  config.dynamicSmemBytes = sizeof(FewRowsSmem);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

cudaError_t prepare_few_rows_gemm1() {
  const auto kernel = few_rows_gemm1<2>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FewRowsSmem));
  if (error != cudaSuccess) return error;
  int clusters;
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = few_rows_config(kCtas, attribute);
  error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error != cudaSuccess) return error;
  if (clusters < 1) return cudaErrorLaunchOutOfResources;
  resident_clusters = std::min(clusters, resident_clusters.load());
  return cudaSuccess;
}

cudaError_t launch_few_rows_gemm1(const GroupedArgs& args, const CUtensorMap& w1, cudaStream_t stream) {
  return launch_with_pdl(few_rows_gemm1<2>, kCtas * resident_clusters, kFewRowsThreads, clusters_of(kCtas),
                         sizeof(FewRowsSmem), stream, w1, args);
}

}  // namespace hopper_fused
