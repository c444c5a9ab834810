// order_tokens: FP8 tokens with each K block in MXFP4 weights' order of K (k_order.cuh), for mxfp4_gemm1.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace hopper_fused {

// Between route_permute and gemm1, by programmatic dependent launch. x, ordered: [num_tokens, H].
cudaError_t launch_order_tokens(const uint8_t* x, uint8_t* ordered, int num_tokens, cudaStream_t stream);

}  // namespace hopper_fused
