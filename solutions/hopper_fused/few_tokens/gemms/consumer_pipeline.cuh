// consumer_pipeline: how consumer warps give a stage back to the producer warps.
#pragma once
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/pipeline/pipeline.cuh"

namespace hopper_fused {

// Gives a stage back. Every consumer thread calls it when its wgmmas on the stage are over, and arrives for itself.
// read: the scales that it has read from the stage. One arrival for a warp would be no faster, and racecheck would
// report false hazards: it wants a __syncwarp() in front, which the compiler drops where it knows the warp to be
// converged.
template <class... Read>
__device__ __forceinline__ void consumer_release(FusedSmem& s, int stage, const Read&... read) {
  s.empty[stage].release(read...);
}

// Goes past stages that only the other warpgroup reads. It waits for each of them, because a thread that left out a
// phase of a barrier could mistake a later one for it.
__device__ __forceinline__ void skip_stages(FusedSmem& s, PipelineState<Config::kStages>& pipe, int count) {
  for (int i = 0; i < count; i++, pipe.advance()) {
    s.full[pipe.stage].wait(pipe.phase);
    consumer_release(s, pipe.stage);
  }
}

}  // namespace hopper_fused
