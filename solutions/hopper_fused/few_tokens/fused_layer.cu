// fused_layer: the whole MoE layer in one launch, for up to kFusedMaxTokens tokens.
//
//   all warps      route tokens (all of them, or this block's share and a grid barrier), then sort rows by expert
//   warps 8, 9     load.cuh: keep the ring of K steps full
//   warps 10, 11   tell the other blocks of each unit of h that is stored
//   warps 0 to 7   gather this block's share of the rows, grid barrier, gemm1_swiglu_quant.cuh on this block's units,
//                  gemm2_combine.cuh on its columns, a segment as soon as all blocks' units of it are done
//
// The grid barriers cannot deadlock: the launch is cooperative, so either all blocks are resident or none runs, and
// every wait is for an arrival that its block makes without waiting for anything later.
#include "gemm2_combine.cuh"
#include "load.cuh"
#include "permute.cuh"
#include "route.cuh"

// What the consumer threads wrote becomes visible to all blocks. Their barrier puts the writes before one thread's
// release, which needs no fence beside it; whoever reads them by bulk copy fences between its acquire and the copy.
__device__ __forceinline__ void publish(unsigned* counter) {
  named_barrier_sync(kBarConsumers, kConsumerThreads);
  if (threadIdx.x == 0) counter_arrive(counter);
}

__global__ void __launch_bounds__(kFusedThreads, 1) fused_layer(const __grid_constant__ TensorMaps maps, const FusedArgs args) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  FusedSmem& s = *reinterpret_cast<FusedSmem*>(smem_base);
  const int warp = threadIdx.x / 32;
  const bool all_route = args.num_tokens <= kRouteAllTokens;

  prefetch_tokens(args);
  if (threadIdx.x == kFusedThreads - 1) {
    prefetch_tensor_map(&maps.w1);
    prefetch_tensor_map(&maps.w2);
    for (int i = 0; i < kFusedStages; i++) {
      mbar_init(&s.full[i], 2);  // weights, activations
      mbar_init(&s.empty[i], kConsumerThreads);
    }
    mbar_init(&s.split_k_full, kWarpgroupThreads);
    mbar_init(&s.split_k_empty, kWarpgroupThreads);
    for (int i = 0; i < 2; i++) mbar_init(&s.sums_added[i], kWarpgroupThreads);
    mbar_init(&s.bypass_loaded, 1);
    mbar_init(&s.bypass_skipped, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  if (args.num_tokens <= kBypassTokens)  // while routing goes on
    for (int i = threadIdx.x; i < args.num_tokens * kKSteps1; i += kFusedThreads) cp_async_4(&s.routing().x_scale[i], args.x_scale + i);
  if (all_route) {
    for (int t = warp; t < args.num_tokens; t += kFusedThreads / 32) route_token(args, t, &s.mask[t], 32, s.routing().weight[t]);
    __syncthreads();
  } else {
    for (int t = blockIdx.x + gridDim.x * warp; t < args.num_tokens; t += gridDim.x * (kFusedThreads / 32))
      route_token(args, t, &args.scratch->mask[t / 32 * kPaddedLocal + t % 32], 32, args.scratch->weight[t]);
    __syncthreads();
    if (threadIdx.x == kConsumerThreads) prefetch_first_weights(maps);
    if (threadIdx.x == 0) {
      counter_arrive(&args.scratch->counters[kRouted]);
      counter_wait(&args.scratch->counters[kRouted], gridDim.x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocal; i += kFusedThreads) s.mask[i] = __ldcg(&args.scratch->mask[i]);
    __syncthreads();
  }
  cp_async_wait_all();
  permute(s, args.num_tokens);

  const bool in_gemm2 = blockIdx.x < kGemm2Ctas;
  if (warp >= kConsumerThreads / 32) {
    warpgroup_reg_dealloc<40>();
    if (warp == kConsumerThreads / 32) {
      named_barrier_sync(kBarRowsRead, kConsumerThreads + 32);
      if (threadIdx.x % 32 == 0) load_weights(s, maps, args, in_gemm2);
    }
    if (warp == kConsumerThreads / 32 + 1) load_activations(s, args, in_gemm2);
    if (warp >= kConsumerThreads / 32 + 2) signal_slices(s, args, warp - kConsumerThreads / 32 - 2);
  } else {
    warpgroup_reg_alloc<232>();
    PipelineState<kFusedStages> pipe;
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    gather_rows(s, args);
    publish(&args.scratch->counters[kGathered]);
    gemm1_swiglu_quant(s, args, pipe, warpgroup);
    if (in_gemm2) gemm2_combine(s, args, pipe, warpgroup);

    // the last block to finish leaves the counters as it found them; gemm2 is over, so nobody reads them any more
    named_barrier_sync(kBarConsumers, kConsumerThreads);
    if (threadIdx.x == 0 && atomicAdd(&args.scratch->counters[kFinished], 1) == gridDim.x - 1) {
      for (int i = kRouted; i <= kFinished; i++) args.scratch->counters[i] = 0;
      for (int n = 0; n < s.num_chunks; n++) args.scratch->slices_stored[n] = 0;
      for (int n = 0; kChunkSplits > 1 && n < kColumnTiles; n++) args.scratch->sums_added[n] = 0;
    }
  }
}

cudaError_t prepare_fused_layer() {
  static_assert(sizeof(FusedSmem) <= 227 * 1024, "a block may have 227 KB of shared memory");
  return cudaFuncSetAttribute(fused_layer, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FusedSmem));
}

cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {
  void* parameters[] = {const_cast<TensorMaps*>(&maps), const_cast<FusedArgs*>(&args)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(fused_layer), dim3(ctas), dim3(kFusedThreads), parameters,
                                     sizeof(FusedSmem), stream);
}
