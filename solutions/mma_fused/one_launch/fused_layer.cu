// fused_layer: the whole MoE layer in one cooperative launch, for up to kMaxTokens tokens. One CTA per SM, whose warps
// are all alike: each loads the weights that it multiplies (weights.cuh). From sm_90 on by programmatic dependent
// launch: barriers are initialised while the kernel before ends.
//
//   zero_sums    of this CTA's column tiles, in scratch
//   route        or the caller's ids: up to kRouteAllTokens tokens every CTA all; above, its share, and then waits for
//                all CTAs
//   permute      row lists, the same in every CTA
//   gemm1        this CTA's slices: warp w has K steps w, w + kWarps, ...; warps 0..3 sum up, SwiGLU, h to scratch;
//                and perhaps half of a slice: sums to scratch, or added to the other CTA's from there
//   gemm2        this CTA's column tiles, chunk by chunk when all slices of the chunk are stored; sums in scratch
//   output       sums to bf16
//
// barrier              arrivals                          waits                       what it orders
// full[warp][stage]    lane 0 + the unit's bytes         the warp, parity of the     weights by TMA before their reads
//                                                        passes over the stages
// __syncwarp           the warp                          the warp                    stage read, then loaded again
// __syncthreads        all threads                       all threads                 parts written, read, written again
// kBarAmax             128: warps 0..3                   warps 0..3                  row maxima of a slice
// kBarStored           warps 0..3 and the last one: 160  the last warp               h of a slice, or sums of a first
//                      threads, 128 with four warps                                  half, before their signal
//
// global counter       arrivals                          waits
// kRouted              every CTA: masks and weights      thread 0 of every CTA (a grid barrier, above kRouteAllTokens)
// slices_stored        kSlices for each chunk            every warp of CTAs with column tiles, before it reads h
// halves_stored        1 for each slice that is cut      warps 0..3 of the CTA of the second half
// sums_added           splits for each shared tile       thread 0 of the CTAs that share it
// kFinished            every CTA; the last one zeroes    none
//                      all counters
//
// What runs once or twice in a launch is not unrolled (`#pragma unroll 1`): its code comes from memory, like the weights.
//
// It cannot deadlock: the launch is cooperative, so all CTAs are resident or none runs, and every CTA makes the arrival
// that another waits for without waiting itself for anything later: routed before all, whole slices and first halves,
// second halves (a CTA has one half, after its slices), h, sums.
#include "barrier.cuh"
#include "counter.cuh"
#include "gemm1_swiglu.cuh"
#include "gemm2_combine.cuh"
#include "launch.cuh"
#include "pdl.cuh"
#include "permute.cuh"
#include "tma.cuh"
#include "token_experts.cuh"

// For all threads: masks and routing weights of all tokens; the masks also in shared memory.
__device__ __forceinline__ void route(Smem& s, const FusedArgs& args) {
  const int warp = threadIdx.x / kWarp;
  Routing& routing = s.routing();
  if (args.num_tokens <= kRouteAllTokens) {
    for (int t = warp; t < args.num_tokens; t += kWarps)
      token_experts(args, t, &routing.mask[t], 32, routing.weight[t]);
  } else {
    FusedScratch& scratch = *args.scratch;
    for (int t = blockIdx.x + gridDim.x * warp; t < args.num_tokens; t += gridDim.x * kWarps)
      token_experts(args, t, &scratch.mask[t / 32 * kPaddedLocalExperts + t % 32], 32, scratch.weight[t]);
    __syncthreads();
    if (threadIdx.x == 0) {
      counter_arrive(&scratch.counters[kRouted]);
      counter_wait(&scratch.counters[kRouted], gridDim.x);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocalExperts; i += kThreads)
      routing.mask[i] = __ldcg(&scratch.mask[i]);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, 1)
    fused_layer(const __grid_constant__ TensorMaps maps, const __grid_constant__ FusedArgs args) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  Smem& s = *reinterpret_cast<Smem*>(smem_base);
  const Division columns(gridDim.x, blockIdx.x);  // integer divisions, as the launch before ends
#if MMA_FUSED_TMA
  if (threadIdx.x % kWarp == 0) {
    prefetch_tma_descriptor(&maps.w1);
    prefetch_tma_descriptor(&maps.w2);
    for (int i = 0; i < kStages; i++) mbar_init(&s.full[threadIdx.x / kWarp][i], 1);
    fence_barrier_init();
  }
  pdl_wait();
  pdl_launch_dependents();
#endif
  zero_sums(args, columns);
  route(s, args);
  permute(s, args.num_tokens);
  if (threadIdx.x == kThreads - 1) {
    s.division = columns;
    s.division.divide(s.num_chunks);
  }
#if MMA_FUSED_TMA
  fence_proxy_async_shared();  // routing lay where TMA writes
#endif
  __syncthreads();
  WeightStream weights(s, maps, args);
  __syncthreads();  // orders nothing: without it nvcc 13.0 spills on sm_120
  gemm1_swiglu(s, args, weights);
  gemm2_combine(s, args, weights);

  // The last CTA to finish leaves the counters at zero for the next launch; no CTA reads them any more.
  __syncthreads();
  if (threadIdx.x == 0) s.finishes_last = atomicAdd(&args.scratch->counters[kFinished], 1) == gridDim.x - 1;
  __syncthreads();
  unsigned* counters = reinterpret_cast<unsigned*>(args.scratch);
  constexpr int kCounters = offsetof(FusedScratch, mask) / sizeof(unsigned);
  for (int i = threadIdx.x; s.finishes_last && i < kCounters; i += kThreads) counters[i] = 0;
}

cudaError_t prepare_fused_layer() {
  return cudaFuncSetAttribute(fused_layer, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem));
}

cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {
#if MMA_FUSED_TMA
  return launch_with_pdl(fused_layer, ctas, kThreads, cooperative(), sizeof(Smem), stream, maps, args);
#else
  void* parameters[] = {const_cast<TensorMaps*>(&maps), const_cast<FusedArgs*>(&args)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(fused_layer), dim3(ctas), dim3(kThreads), parameters,
                                     sizeof(Smem), stream);
#endif
}
