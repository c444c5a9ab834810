// fused_layer: the whole MoE layer in one cooperative launch, for up to kMaxTokens tokens. config.cuh explains m_block,
// n_block, column tile and weight tile.
//
// One persistent CTA per SM. There are no producer warps: each warp fills its own stages with weight tiles and
// multiplies them. The warps of a CTA divide K, so they meet only at the end of a tile, to add up their sums.
//
//   warps   file                  work, in order of time               data
//   all     load_tokens() below   short tiles: tokens, as far as they   x -> shared memory, or L2
//                                 fit, and their scales
//   all     gemm2_combine.cuh     zero this CTA's output sums          -> slabs, in scratch; they stay in L2
//   all     route() below         a token a warp: top-k, or the        logits or ids -> masks and weights. With up to
//                                 caller's ids                         kRouteAllTokens tokens every CTA routes all,
//                                                                      else a share, to scratch, and a grid barrier
//   all     permute.cuh           row lists and m_blocks               masks -> shared memory, the same in every CTA
//   each    weight_pipeline.cuh   from here to the end of gemm2: load  W13, then W2 -> the warp's stages, by TMA (lane
//                                 weight tiles, kStages ahead          0), before sm_90 by cp.async
//   all     gemm1_swiglu.cuh      this CTA's tiles: MMAs, sums over    x -> registers, a K block ahead
//                                 warps
//   0 - 3                         SwiGLU, fp16; the last warp signals  -> h, in scratch
//   all     gemm2_combine.cuh     this CTA's column tiles, m_block by  h -> registers, a K block ahead
//                                 m_block as h is complete: MMAs,
//                                 sums over warps
//   0 - 3                         add to the output sums               slabs -> slabs
//   all                           round to bf16                        slabs -> output
//
// tile_scheduler.cuh says which tiles a CTA has; tiled_mma.cuh multiplies a weight tile; sum_over_warps.cuh adds up.
//
//   barrier             arrivals   who arrives               who waits      what it protects
//   full[warp][stage]   1 + bytes  lane 0 of the warp; TMA   the warp       a stage: loaded. The parity is the
//                                                                           pipeline's phase. cp.async: wait_group
//   __syncwarp          32         the warp                  the same       a stage: read, it may be loaded again;
//                                                                           with cp.async: loaded by all lanes
//   __syncthreads       kThreads   all                       all            masks, row lists, schedule and staged
//                                                                           tokens: written;
//                                                                           warp_sums: read before, written now;
//                                                                           amax: read before; slabs: zeroed, complete
//   AmaxBarrier         128        warps 0 - 3               the same       amax: the maxima of all four are written
//   StoredBarrier       160 (1)    warps 0 - 3, last warp    the last warp  h of a tile, or the sums of a first part:
//                                                                           stored, before they are counted
//
//   global counter      arrivals, who arrives                 who waits                    what it protects
//   kRouted             every CTA, thread 0                   the same: a grid barrier     masks, weights in scratch
//   split_k_stored[]    1, last warp of the first part's CTA  warps 0 - 3 of the second    split_k_sums of the tile
//                                                             part's CTA
//   n_blocks_stored[]   kNumNBlocks, last warp of the CTA     every warp, before it loads  h, h_scale of the m_block
//                       of each n_block                       the m_block's h
//   slabs_stored[]      sharing_ctas, thread 0 of each        the same                     slabs of the column tile
//   kFinished           every CTA, last warp                  nobody: the last CTA zeroes all counters
//
//   (1) 128 where the CTA has four warps, as the last one is one of warps 0 - 3.
//
// It cannot deadlock. The launch is cooperative, so all CTAs are resident or none runs. And what CTAs wait for has an
// order: kRouted; whole tiles and first parts; second parts (a CTA has one part at most, and it is the last of its
// tiles); slabs. Before a CTA makes an arrival, it waits only for what comes before it in this order.
//
// Code that runs once or twice is not unrolled (`#pragma unroll 1`): its instructions are fetched cold from memory.
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "mma_fused/one_launch/fused_layer.cuh"
#include "mma_fused/one_launch/gemm1_swiglu.cuh"
#include "mma_fused/one_launch/gemm2_combine.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "mma_fused/one_launch/permute.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/tokens/token_experts.cuh"
#include "mma_fused/one_launch/weight_pipeline.cuh"

namespace mma_fused {

// For all threads: routes all tokens. Afterwards the masks are in shared memory. The routing weights are there too, or,
// above kRouteAllTokens, in scratch.
__device__ __forceinline__ void route(Smem& s, const FusedArgs& args) {
  const int warp = threadIdx.x / kWarp;
  Routing& routing = s.routing();
  if (args.num_tokens <= Config::kRouteAllTokens) {
    for (int t = warp; t < args.num_tokens; t += Config::kWarps)
      token_experts(args, t, &routing.mask[t], 32, routing.weight[t]);
  } else {
    FusedScratch& scratch = *args.scratch;
    for (int t = blockIdx.x + gridDim.x * warp; t < args.num_tokens; t += gridDim.x * Config::kWarps)
      token_experts(args, t, &scratch.mask[t / 32 * (32 * kMaskWords) + t % 32], 32, scratch.weight[t]);
    __syncthreads();
    if (threadIdx.x == 0) {
      counter_arrive(&scratch.counters[kRouted]);
      counter_wait(&scratch.counters[kRouted], gridDim.x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * (32 * kMaskWords); i += Config::kThreads)
      routing.mask[i] = __ldcg(&scratch.mask[i]);
  }
  __syncthreads();
}

// For all threads: loads the tokens to shared memory while they are routed, or to L2 where they are too many. If they
// were requested with the first weights, they would arrive behind these.
__device__ __forceinline__ void load_tokens(Smem& s, const FusedArgs& args) {
  constexpr int kLine = 128, kVectors = kHidden / 16;
  const int lines = args.num_tokens * kNumKBlocks1, scale_lines = (lines * 4 + kLine - 1) / kLine;
  if (Config::kStagedTokens > 0 && args.num_tokens <= Config::kStagedTokens) {
#pragma unroll 1
    for (int i = threadIdx.x; i < args.num_tokens * kVectors; i += Config::kThreads)
      cp_async_16(s.x(i / kVectors) + i % kVectors * 16, args.x + i * 16);
    for (int i = threadIdx.x; i < lines; i += Config::kThreads) cp_async_4(s.x_scale() + i, args.x_scale + i);
  } else {
    const int thread = blockIdx.x * Config::kThreads + threadIdx.x, threads = gridDim.x * Config::kThreads;
    for (int i = thread; i < lines; i += threads) prefetch_l2(args.x + i * kLine);
    if (thread < scale_lines) prefetch_l2(reinterpret_cast<const uint8_t*>(args.x_scale) + thread * kLine);
  }
}

// For the last warp, which has the fewest tokens to store, when no warp of its CTA reads a counter any more: the last
// CTA leaves them at zero for the next launch.
__device__ __forceinline__ void reset_counters(const FusedArgs& args) {
  const int lane = threadIdx.x % kWarp;
  const bool last = lane == 0 && counter_arrive_last(&args.scratch->counters[kFinished], gridDim.x);
  if (!__any_sync(kFullWarp, last)) return;
  __syncwarp();  // what lane 0 acquired
  unsigned* counters = reinterpret_cast<unsigned*>(args.scratch);
  for (int i = lane; i < int(kZeroedBytes / sizeof(unsigned)); i += kWarp) counters[i] = 0;
}

__global__ void __launch_bounds__(Config::kThreads, 1)
    fused_layer(const __grid_constant__ TensorMaps maps, const __grid_constant__ FusedArgs args) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  Smem& s = *reinterpret_cast<Smem*>(smem_base);
  const TileScheduler scheduler(gridDim.x, blockIdx.x);  // here its divisions overlap the end of the launch before
#if MMA_FUSED_TMA
  if (threadIdx.x % kWarp == 0) {
    prefetch_tma_descriptor(&maps.w1);
    prefetch_tma_descriptor(&maps.w2);
    for (int i = 0; i < Config::kStages; i++) s.full[threadIdx.x / kWarp][i].init(1);
    fence_barrier_init();
  }
  pdl_wait();
  pdl_launch_dependents();  // the next kernel may begin on SMs whose CTA has ended
#endif

  if constexpr (Config::kShortTiles) load_tokens(s, args);
  zero_slabs(args, scheduler);
  route(s, args);
  permute(s, args.num_tokens);
  if (threadIdx.x == Config::kThreads - 1) {  // the last warp, which permute() gives the fewest rows
    s.scheduler = scheduler;
    s.scheduler.schedule_gemm1(s.num_m_blocks);
  }
  if constexpr (Config::kStagedTokens > 0) cp_async_wait_all();
#if MMA_FUSED_TMA
  fence_proxy_async_shared();  // permute() wrote where TMA will
#endif
  __syncthreads();
  WeightPipeline weights(s, maps, args);
  __syncthreads();  // not needed for order, but without it nvcc 13.0 spills 32 bytes on sm_120
  gemm1_swiglu(s, args, weights);
  gemm2_combine(s, args, weights);
  if (threadIdx.x >= Config::kThreads - kWarp) reset_counters(args);
}

cudaError_t prepare_fused_layer() {
  return cudaFuncSetAttribute(fused_layer, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem));
}

cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {
#if MMA_FUSED_TMA
  return launch_with_pdl(fused_layer, ctas, Config::kThreads, cooperative(), sizeof(Smem), stream, maps, args);
#else
  void* parameters[] = {const_cast<TensorMaps*>(&maps), const_cast<FusedArgs*>(&args)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(fused_layer), dim3(ctas), dim3(Config::kThreads),
                                     parameters, sizeof(Smem), stream);
#endif
}

}  // namespace mma_fused
