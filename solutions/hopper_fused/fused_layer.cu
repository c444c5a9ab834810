// fused_layer: the whole MoE layer in one launch, for up to kMaxTokens tokens.
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
  bar_sync(kBarConsumers, kConsumers);
  if (threadIdx.x == 0) arrive_gpu(counter);
}

__global__ void __launch_bounds__(kThreads, 1) fused_layer(const __grid_constant__ Maps maps, const Args a) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  Smem& s = *reinterpret_cast<Smem*>(smem_base);
  const int warp = threadIdx.x / 32;
  const bool all_route = a.num_tokens <= kFewTokens;

  prefetch_tokens(a);
  if (threadIdx.x == kThreads - 1) {
    prefetch_map(&maps.w1);
    prefetch_map(&maps.w2);
    for (int i = 0; i < kStages; i++) {
      mbar_init(&s.full[i], 2);  // weights, activations
      mbar_init(&s.empty[i], kConsumers);
    }
    mbar_init(&s.handed, kWarpgroup);
    mbar_init(&s.taken, kWarpgroup);
    for (int i = 0; i < 2; i++) mbar_init(&s.added[i], kWarpgroup);
    mbar_init(&s.direct_done, 1);
    mbar_init(&s.direct_passed, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  if (a.num_tokens <= kDirectTokens)  // while routing goes on
    for (int i = threadIdx.x; i < a.num_tokens * kK1; i += kThreads) copy_word(&s.few().x_scale[i], a.x_scale + i);
  if (all_route) {
    for (int t = warp; t < a.num_tokens; t += kThreads / 32) route_token(a, t, &s.mask[t], 32, s.few().weight[t]);
    __syncthreads();
  } else {
    for (int t = blockIdx.x + gridDim.x * warp; t < a.num_tokens; t += gridDim.x * (kThreads / 32))
      route_token(a, t, &a.scratch->mask[t / 32 * kPadded + t % 32], 32, a.scratch->weight[t]);
    __syncthreads();
    if (threadIdx.x == kConsumers) guess_first_weights(maps);
    if (threadIdx.x == 0) {
      arrive_gpu(&a.scratch->counters[kRouted]);
      wait_gpu(&a.scratch->counters[kRouted], gridDim.x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (a.num_tokens + 31) / 32 * kPadded; i += kThreads) s.mask[i] = __ldcg(&a.scratch->mask[i]);
    __syncthreads();
  }
  copies_done();
  permute(s, a.num_tokens);

  const bool in_gemm2 = blockIdx.x < kGemm2Blocks;
  if (warp >= kConsumers / 32) {
    registers_down<40>();
    if (warp == kConsumers / 32) {
      bar_sync(kBarRowsRead, kConsumers + 32);
      if (threadIdx.x % 32 == 0) load_weights(s, maps, a, in_gemm2);
    }
    if (warp == kConsumers / 32 + 1) load_activations(s, a, in_gemm2);
    if (warp >= kConsumers / 32 + 2) announce_units(s, a, warp - kConsumers / 32 - 2);
  } else {
    registers_up<232>();
    Ring<kStages> ring;
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    gather_rows(s, a);
    publish(&a.scratch->counters[kGathered]);
    gemm1_swiglu_quant(s, a, ring, warpgroup);
    if (in_gemm2) gemm2_combine(s, a, ring, warpgroup);

    // the last block to finish leaves the counters as it found them; gemm2 is over, so nobody reads them any more
    bar_sync(kBarConsumers, kConsumers);
    if (threadIdx.x == 0 && atomicAdd(&a.scratch->counters[kFinished], 1) == gridDim.x - 1) {
      for (int i = kRouted; i <= kFinished; i++) a.scratch->counters[i] = 0;
      for (int n = 0; n < s.num_segments; n++) a.scratch->activated[n] = 0;
      for (int n = 0; kParts > 1 && n < kColumnBlocks; n++) a.scratch->added[n] = 0;
    }
  }
}

cudaError_t prepare_fused_layer() {
  static_assert(sizeof(Smem) <= 227 * 1024, "a block may have 227 KB of shared memory");
  return cudaFuncSetAttribute(fused_layer, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem));
}

cudaError_t launch_fused_layer(const Maps& maps, const Args& args, int blocks, cudaStream_t stream) {
  void* parameters[] = {const_cast<Maps*>(&maps), const_cast<Args*>(&args)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(fused_layer), dim3(blocks), dim3(kThreads), parameters,
                                     sizeof(Smem), stream);
}
