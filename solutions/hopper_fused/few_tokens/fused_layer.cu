// fused_layer: the whole MoE layer in one cooperative launch for up to kMaxTokens tokens. One persistent CTA per
// SM: two consumer warpgroups (wgmma) and a producer warpgroup. config.cuh explains m_block, n_block and tiles.
//
//   warps    file                     work, in order of time
//   all      route.cuh                masks of each token's local experts: every CTA for all tokens up to
//                                     kRouteAllTokens, else for its share, and a grid barrier
//   all      permute.cuh              row lists, the same in every CTA; with top-k given straight from the ids
//   0 - 7    quantise.cuh             tokens in bf16: all of them as FP8 rows in shared memory
//            gather.cuh               this CTA's share of the rows of x, to scratch
//            gemm1_swiglu_quant.cuh   this CTA's n_blocks, h to scratch
//            gemm2_combine.cuh        this CTA's 64 output columns, m_block by m_block as h is complete; output
//            all_reduce.cuh           with ReducedArgs: those columns summed over the ranks of the host
//   8        producer.cuh             W13 by TMA (and the row of x of m_blocks that bypass the gather), then W2
//   9        producer.cuh             x when all CTAs have gathered, then h when its m_block is complete; at the end
//                                     other CTAs' partial sums awaited, the counters zeroed
//   10, 11   producer.cuh             count, for each m_block, the n_blocks of h that warpgroup 0 or 1 has stored
//
// Both GEMMs use one ring of kStages stages, without a break between them.
//
//   mbarrier          arrivals    who arrives            who waits     what it protects
//   full[stage]       2 + bytes   warps 8 and 9 (1)      warps 0 - 7   a stage and its scales: loaded
//   empty[stage]      256         threads, warps 0 - 7   warps 8, 9    a stage and its scales: may be overwritten
//   split_k_full      128         warpgroup 1            warpgroup 0   split_k_sums: written
//   split_k_empty     128         warpgroup 0            warpgroup 1   split_k_sums: may be overwritten (2)
//   sums_added[0]     128         warpgroup 0            warpgroup 1   gemm2's sums: warpgroup 1's turn to add
//   sums_added[1]     128         warpgroup 1            warpgroup 0   gemm2's sums: warpgroup 0's turn to add (2)
//   bypass_loaded     1           warp 8                 warp 9        stages that only warp 8 fills: filled, so that
//                                                                      warp 9 may skip them
//   bypass_skipped    1           warp 9                 warp 8        bypass_loaded: warp 9 has seen its phase (2)
//
//   (1) One thread each. In tiles that bypass the gather warp 8 arrives for both.
//   (2) Waits for the phase before; the first time there is none.
//   Parities of the waits: for `full` the pipeline's phase, for `empty` the opposite, else the phase's number % 2.
//
//   named barrier      threads   who arrives           who waits         what it protects
//   WarpgroupBarrier   128       warpgroup 0 / 1       the same          amax: the maxima of all four warps are written
//   ConsumersBarrier   256       warps 0 - 7           the same          rows quantised from bf16; pool between gemm1
//                                                                        and gemm2; sums: zeroed, complete
//   RowsReadBarrier    288       warps 0 - 7           warp 8            no data: rows of x are requested before
//                                                                        weights; bf16 ones, which are in L2, after
//   GatheredBarrier    288       warps 0 - 7           warp 9            x and x_scale: stored, before they are counted
//   PartialsBarrier    288       warps 0 - 7           warp 9            partial sums: stored, before they are counted
//   AllPartialsBarrier 288       warp 9                warps 0 - 7       partial sums of all CTAs: stored
//   HStoredBarrier     160       warpgroup 0 / 1, and  the same          h of an n_block: stored, before it is counted;
//                                warp 10 / 11                            amax: may be overwritten
//
//   global counter    arrivals                        who waits                    what it protects
//   kRouted           every CTA                       every CTA (a grid barrier)   masks and weights in scratch
//   kGathered         every CTA                       warp 9                       x and x_scale in scratch
//   n_blocks_stored   kNumNBlocks for each m_block    warp 9 with a column tile    h and h_scale of the m_block
//   partials_stored   kCtasPerColumnTile for each     warp 9 with the column tile  partial sums in scratch
//                     column tile
//   kFinished         every CTA                       nobody: the last one zeroes all counters for the next launch
//
// It cannot deadlock. Between CTAs: the launch is cooperative, so all are resident or none runs; each routes, gathers,
// computes its tiles of gemm1 and stores partial sums in this order, and in none of these waits for a later one of
// another. Within a CTA all warps walk the same tiles: on a tile warp 8 waits only for warps that are still on earlier
// ones, warp 9 also for warp 8, the consumers for both; when they have gathered, and at the end, it waits for them.
#include <type_traits>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/few_tokens/rows/gather.cuh"
#include "hopper_fused/few_tokens/gemms/gemm1_swiglu_quant.cuh"
#include "hopper_fused/few_tokens/gemms/gemm2_combine.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "hopper_fused/few_tokens/rows/permute.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/few_tokens/gemms/producer.cuh"
#include "hopper_fused/few_tokens/rows/quantise.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "common/cuda/tokens/route.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "hopper_fused/few_tokens/all_reduce/peers.cuh"

namespace hopper_fused {

// For one thread.
__device__ __forceinline__ void init_barriers(FusedSmem& s) {
  for (int i = 0; i < Config::kStages; i++) {
    s.full[i].init(2);
    s.empty[i].init(kConsumerThreads);
  }
  s.split_k_full.init(kWarpgroupThreads);
  s.split_k_empty.init(kWarpgroupThreads);
  for (int i = 0; i < kConsumerWarpgroups; i++) s.sums_added[i].init(kWarpgroupThreads);
  s.bypass_loaded.init(1);
  s.bypass_skipped.init(1);
  fence_barrier_init();
}

// Writes mask, and the weights to shared memory where every CTA routes all tokens, else to scratch.
__device__ __forceinline__ void route(FusedSmem& s, const FusedArgs& args, const TensorMaps& maps) {
  const int warp = threadIdx.x / kWarp;
  FusedScratch& scratch = *args.scratch;
  if (args.num_tokens <= Config::kRouteAllTokens) {
    for (int t = warp; t < args.num_tokens; t += Config::kWarps)
      route_token(args, t, &s.mask[t], 32, s.gemm1_smem().token_weight(t));
    __syncthreads();
    return;
  }
  for (int t = blockIdx.x + gridDim.x * warp; t < args.num_tokens; t += gridDim.x * Config::kWarps)
    route_token(args, t, &scratch.mask[t / 32 * kPaddedLocalExperts + t % 32], 32, scratch.weight[t]);
  __syncthreads();
  if (threadIdx.x == kConsumerThreads) prefetch_first_weights(maps);
  if (threadIdx.x == 0) {
    counter_arrive(&scratch.counters[kRouted]);
    counter_wait(&scratch.counters[kRouted], gridDim.x);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocalExperts; i += Config::kThreads)
    s.mask[i] = __ldcg(&scratch.mask[i]);
  __syncthreads();
}

// kBf16: x is bf16, of kQuantiseTokens tokens at most; without x_scale. Args: FusedArgs, or ReducedArgs for the output
// summed over the ranks.
template <bool kBf16, class Args>
__global__ void __launch_bounds__(Config::kThreads, 1)
    fused_layer(const __grid_constant__ TensorMaps maps, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  FusedSmem& s = *reinterpret_cast<FusedSmem*>(smem_base);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == Config::kThreads - 1) {  // while the kernel before ends
    prefetch_tma_descriptor(&maps.w1);
    prefetch_tma_descriptor(&maps.w2);
    init_barriers(s);
  }
  pdl_wait();
  pdl_launch_dependents();
  prefetch_tokens<kBf16>(args);

  if (!kBf16 && args.num_tokens <= Config::kBypassTokens)  // in flight while the tokens are routed
    for (int i = threadIdx.x; i < args.num_tokens * kNumKBlocks1; i += Config::kThreads)
      cp_async_4(&s.gemm1_smem().x_scale()[i], args.x_scale + i);
  if constexpr (kTopKGiven) mark_tokens(s, args);
  else route(s, args, maps);
  cp_async_wait_all();
  permute(s, args);

  const bool has_column_tile = blockIdx.x < Config::kGemm2Ctas;
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<Config::kProducerRegisters>();
    if (warp == kConsumerWarps) {
      RowsReadBarrier::sync();
      if (threadIdx.x % kWarp == 0) load_weights<kBf16>(s, maps, args, has_column_tile);
    }
    if (warp == kConsumerWarps + 1) {
      load_activations(s, args, has_column_tile);
      __syncwarp();
      if (Config::kCtasPerColumnTile > 1 && has_column_tile && !(kMxfp4Weights && args.y)) exchange_partials(args);
      reset_counters(s, args);
    }
    if (warp >= kConsumerWarps + 2) signal_stored_h(s, args, warp - kConsumerWarps - 2);
  } else {
    warpgroup_reg_alloc<Config::kConsumerRegisters>();
    PipelineState<Config::kStages> pipe;
    unsigned epoch = 0;  // of the ranks' exchange; read before GatheredBarrier, and so before a CTA has finished
    if constexpr (std::is_same_v<Args, ReducedArgs>) epoch = *epoch_place(args.peers) + 1;
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    if constexpr (kBf16) {
      RowsReadBarrier::arrive();
      quantise(s, args);
      ConsumersBarrier::sync();
    }
    gather_rows<kBf16>(s, args);
    GatheredBarrier::arrive();
    gemm1_swiglu_quant<kBf16>(s, args, pipe, warpgroup);
    if (has_column_tile) gemm2_combine(s, args, pipe, warpgroup, epoch);
  }
}

// Tokens in bf16 and sums over ranks are for FP8 weights alone.
constexpr bool kTakesBf16 = !kMxfp4Weights;

template <class Args>
static auto kernel_for(bool bf16) {
  return bf16 ? fused_layer<kTakesBf16, Args> : fused_layer<false, Args>;
}

template <class Args>
static cudaError_t allow_shared_memory() {
  for (bool bf16 : {false, true})
    if (const cudaError_t error = cudaFuncSetAttribute(
            kernel_for<Args>(bf16), cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FusedSmem)))
      return error;
  return cudaSuccess;
}

cudaError_t prepare_fused_layer() {
  cudaError_t error = allow_shared_memory<FusedArgs>();
  if constexpr (!kMxfp4Weights) {
    if (!error) error = allow_shared_memory<ReducedArgs>();
  }
  return error;
}

template <class Args>
static cudaError_t launch(const TensorMaps& maps, const Args& args, int ctas, cudaStream_t stream) {
  return launch_with_pdl(kernel_for<Args>(args.x_scale == nullptr), ctas, Config::kThreads, cooperative(),
                         sizeof(FusedSmem), stream, maps, args);
}

cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {
  return launch(maps, args, ctas, stream);
}

cudaError_t launch_reduced_layer(const TensorMaps& maps, const ReducedArgs& args, int ctas, cudaStream_t stream) {
  if constexpr (kMxfp4Weights) return cudaErrorNotSupported;
  else return launch(maps, args, ctas, stream);
}

}  // namespace hopper_fused
