// queue_unusual: one thread, which waits for converted_gemm2 and writes the queues of mxfp4_gemm1 and mxfp4_gemm2.
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "hopper_fused_mxfp4/many_tokens/converted/unusual.cuh"

namespace hopper_fused {

// It triggers no launch before its end: mxfp4_gemm2 of a later column pass reads the queues before its pdl_wait().
__global__ void queue_unusual(const __grid_constant__ GroupedArgs args, Counters* behind) {
  pdl_wait();
  if (args.first_column == 0) *behind = Counters{};
  if (*unusual_flag(args.counters) != 0) behind->queues = args.counters->queues;
  __threadfence();
}

cudaError_t launch_queue_unusual(const GroupedArgs& args, Counters* behind, cudaStream_t stream) {
  return launch_with_pdl(queue_unusual, 1, 1, clusters_of(1), 0, stream, args, behind);
}

}  // namespace hopper_fused
