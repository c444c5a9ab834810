// fused_layer: the whole MoE layer in one cooperative launch, for up to kFusedMaxTokens tokens. One CTA per SM.
// Barriers are initialised before pdl_wait(), while the kernel before ends.
//
//   warp      work, in order of time
//   all       route (all tokens, or this CTA's share and a grid barrier), or the caller's ids; permute: row lists, the
//             same in every CTA
//   0 .. 7    consumers: gather this CTA's share of x to scratch; gemm1 and SwiGLU of this CTA's slices, h to scratch;
//             gemm2 of its 64 output columns, chunk by chunk as h is complete; output
//   8         W13 by TMA, x of chunks that bypass the gather by bulk copy; then W2 by TMA
//   9         x and its scales by bulk copy, when all CTAs have gathered; then h and its scales, when a chunk is
//             complete
//   10, 11    signal the slices of h that warpgroup 0 or 1 has stored
//
// mbarrier          arrivals per phase                                    waits        parity it waits for
// full[stage]       2 + bytes: warps 8 and 9 (warp 8 for both, where a    warps 0..7   pipeline phase
//                   chunk bypasses the gather)
// empty[stage]      256: every consumer thread                            warps 8, 9   pipeline phase ^ 1
// split_k_full      128: warpgroup 1, partial sums stored                 warpgroup 0  use % 2
// split_k_empty     128: warpgroup 0, partial sums read                   warpgroup 1  (use - 1) % 2, not at use 0
// sums_added[0]     128: warpgroup 0, chunk added to the output sums      warpgroup 1  chunk % 2 (of this CTA's)
// sums_added[1]     128: warpgroup 1, the same                            warpgroup 0  (chunk - 1) % 2, not at chunk 0
// bypass_loaded     1: warp 8, all steps of a bypassing tile issued       warp 9       tile % 2 (of those that bypass)
// bypass_skipped    1: warp 9, which knows                                warp 8       (tile - 1) % 2, not at tile 0
//
// named barrier     threads                                               what it orders
// kBarWarpgroup0,1  128: the warpgroup                                    row maxima of the four warps
// kBarConsumers     256: warps 0..7                                       publish(); gemm2's sums: zeroed, complete
// kBarRowsRead      256 arrive, 32 wait: warps 0..7, 8                    rows of x are requested before weights
// kBarSliceStored0  160: warpgroup 0, warp 10                             h of a slice is stored; row maxima are free
// kBarSliceStored1  160: warpgroup 1, warp 11                             the same
//
// global counter    arrivals                                              waits
// kRouted           every CTA: masks and weights stored                   thread 0 of every CTA (a grid barrier)
// kGathered         every CTA: rows of x stored                           warp 9
// slices_stored     kSlices for each chunk: warps 10, 11                  warp 9 of CTAs with a column tile
// sums_added        kChunkSplits for each column tile                     thread 0 of these CTAs
// kFinished         every CTA: the last one zeroes the counters           none
//
// It cannot deadlock: the launch is cooperative, so all CTAs are resident or none runs, and every CTA makes the arrival
// that another waits for without waiting itself for anything later.
#include "barrier.cuh"
#include "counter.cuh"
#include "cp_async.cuh"
#include "gemm2_combine.cuh"
#include "launch.cuh"
#include "load.cuh"
#include "pdl.cuh"
#include "permute.cuh"
#include "pipeline.cuh"
#include "registers.cuh"
#include "route.cuh"
#include "tma.cuh"

// Makes the consumers' stores visible to all CTAs. The named barrier orders them before thread 0's release, so no
// further fence is needed here; a reader by bulk copy has a proxy fence between its acquire and the copy.
__device__ __forceinline__ void publish(unsigned* counter) {
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  if (threadIdx.x == 0) counter_arrive(counter);
}

__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_layer(const __grid_constant__ TensorMaps maps, const __grid_constant__ FusedArgs args) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  FusedSmem& s = *reinterpret_cast<FusedSmem*>(smem_base);
  const int warp = threadIdx.x / kWarp;
  const bool all_route = args.num_tokens <= kRouteAllTokens;

  if (threadIdx.x == kFusedThreads - 1) {
    prefetch_tma_descriptor(&maps.w1);
    prefetch_tma_descriptor(&maps.w2);
    for (int i = 0; i < kFusedStages; i++) {
      mbar_init(&s.full[i], 2);
      mbar_init(&s.empty[i], kConsumerThreads);
    }
    mbar_init(&s.split_k_full, kWarpgroupThreads);
    mbar_init(&s.split_k_empty, kWarpgroupThreads);
    for (int i = 0; i < kConsumerWarpgroups; i++) mbar_init(&s.sums_added[i], kWarpgroupThreads);
    mbar_init(&s.bypass_loaded, 1);
    mbar_init(&s.bypass_skipped, 1);
    fence_barrier_init();
  }
  pdl_wait();
  pdl_launch_dependents();
  prefetch_tokens(args);

  if (args.num_tokens <= kBypassTokens)  // in flight while the tokens are routed
    for (int i = threadIdx.x; i < args.num_tokens * kNumKBlocks1; i += kFusedThreads)
      cp_async_4(&s.gemm1_only().x_scale[i], args.x_scale + i);
  if constexpr (kTopKGiven) {
    mark_tokens(s, args);
  } else if (all_route) {
    for (int t = warp; t < args.num_tokens; t += kFusedWarps)
      route_token(args, t, &s.mask[t], 32, s.gemm1_only().weight[t]);
    __syncthreads();
  } else {
    for (int t = blockIdx.x + gridDim.x * warp; t < args.num_tokens; t += gridDim.x * kFusedWarps)
      route_token(args, t, &args.scratch->mask[t / 32 * kPaddedLocalExperts + t % 32], 32, args.scratch->weight[t]);
    __syncthreads();
    if (threadIdx.x == kConsumerThreads) prefetch_first_weights(maps);
    if (threadIdx.x == 0) {
      counter_arrive(&args.scratch->counters[kRouted]);
      counter_wait(&args.scratch->counters[kRouted], gridDim.x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocalExperts; i += kFusedThreads)
      s.mask[i] = __ldcg(&args.scratch->mask[i]);
    __syncthreads();
  }
  cp_async_wait_all();
  permute(s, args);

  const bool in_gemm2 = blockIdx.x < kGemm2Ctas;
  if (warp >= kConsumerWarps) {
    warpgroup_reg_dealloc<kFusedProducerRegs>();
    if (warp == kConsumerWarps) {
      named_barrier_sync(kBarRowsRead, kConsumerThreads + kWarp);
      if (threadIdx.x % kWarp == 0) load_weights(s, maps, args, in_gemm2);
    }
    if (warp == kConsumerWarps + 1) load_activations(s, args, in_gemm2);
    if (warp >= kConsumerWarps + 2) signal_slices(s, args, warp - kConsumerWarps - 2);
  } else {
    warpgroup_reg_alloc<kFusedConsumerRegs>();
    PipelineState<kFusedStages> pipe;
    const int warpgroup = __shfl_sync(kFullWarp, warp / kWarpgroupWarps, 0);  // uniform, and the compiler knows it
    gather_rows(s, args);
    publish(&args.scratch->counters[kGathered]);
    gemm1_swiglu_quant(s, args, pipe, warpgroup);
    if (in_gemm2) gemm2_combine(s, args, pipe, warpgroup);

    // The last CTA to finish leaves the counters at zero for the next launch; no CTA reads them any more.
    named_barrier_sync(kBarConsumers, kConsumerThreads);
    if (threadIdx.x == 0 && atomicAdd(&args.scratch->counters[kFinished], 1) == gridDim.x - 1) {
      for (int i = kRouted; i <= kFinished; i++) args.scratch->counters[i] = 0;
      for (int n = 0; n < s.num_chunks; n++) args.scratch->slices_stored[n] = 0;
      for (int n = 0; kChunkSplits > 1 && n < kColumnTiles; n++) args.scratch->sums_added[n] = 0;
    }
  }
}

cudaError_t prepare_fused_layer() {
  return cudaFuncSetAttribute(fused_layer, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FusedSmem));
}

cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {
  return launch_with_pdl(fused_layer, ctas, kFusedThreads, cooperative(), sizeof(FusedSmem), stream, maps, args);
}
