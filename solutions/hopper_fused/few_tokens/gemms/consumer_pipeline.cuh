// consumer_pipeline: how consumer warps give a stage back to the producer warps.
#pragma once
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/pipeline/pipeline.cuh"

namespace hopper_fused {

// Every consumer thread arrives for its own reads: of the stage's scales, as its wgmmas are over. One lane for its warp
// is no faster, and racecheck would report false hazards: it wants a __syncwarp() in front, which the compiler drops
// where it knows the warp to be converged.
template <class... Read>
__device__ __forceinline__ void consumer_release(FusedSmem& s, int stage, const Read&... read) {
  s.empty[stage].release(read...);
}

// For stages that only the other warpgroup reads. Waits for each, so that this thread keeps to the barriers' phases.
__device__ __forceinline__ void skip_stages(FusedSmem& s, PipelineState<Config::kStages>& pipe, int count) {
  for (int i = 0; i < count; i++, pipe.advance()) {
    s.full[pipe.stage].wait(pipe.phase);
    consumer_release(s, pipe.stage);
  }
}

}  // namespace hopper_fused
