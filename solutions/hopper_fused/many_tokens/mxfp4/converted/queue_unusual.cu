// queue_unusual: one thread, which waits for converted_gemm2 and writes the queues of mxfp4_gemm1 and mxfp4_gemm2.
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/unusual.cuh"
#include "hopper_fused/regimes.cuh"

namespace hopper_fused {

// It triggers no launch before its end: mxfp4_gemm2 of a later column pass reads the queues before its pdl_wait(). A
// template, so that no FP8 layer compiles it.
template <bool kUsed>
__global__ void queue_unusual(const __grid_constant__ GroupedArgs args) {
  pdl_wait();
  Counters& unusual = *counters_of_unusual(args.counters);
  if (args.first_column == 0) unusual = Counters{};
  if (*unusual_flag(args.counters) != 0) unusual.queues = args.counters->queues;
  __threadfence();
}

template <bool kUsed>
static cudaError_t launch(const GroupedArgs& args, cudaStream_t stream) {
  if constexpr (kUsed) return launch_with_pdl(queue_unusual<kUsed>, 1, 1, clusters_of(1), 0, stream, args);
  return cudaErrorNotSupported;
}

cudaError_t launch_queue_unusual(const GroupedArgs& args, cudaStream_t stream) {
  return launch<kConvertsWeights>(args, stream);
}

}  // namespace hopper_fused
