// quantise_tokens: the launch of quantise_tokens.cu.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// x [T, H] bf16 -> q [T, H] fp8 and scales [T, H / 128], of num_tokens >= 1 tokens.
cudaError_t launch_quantise_tokens(const void* x, int num_tokens, uint8_t* q, float* scales, cudaStream_t stream);
