// add_rows: the output from rows of y, where there are too many tokens for their sums in shared memory.
#pragma once
#include <cuda_runtime.h>

#include "hopper_fused/few_tokens/fused_layer.cuh"

namespace hopper_fused {

// args: those of the fused_layer before it.
cudaError_t launch_add_rows(const FusedArgs& args, int sms, cudaStream_t stream);

}  // namespace hopper_fused
