// arguments: the caller's arguments that kernels read, with those of a routed layer; binding.cu fills it.
#pragma once
#include <cstddef>

#include "common/cuda/layer/interface.cuh"
#include "common/cuda/layer/layer.cuh"
#include "common/cuda/layer/layer_sizes.cuh"

struct LayerArgs : Layer {
  const int* topk_ids;        // [T, k], with kTopKGiven; then logits and bias are not there
  const float* topk_weights;  // [T, k], with kTopKGiven
};

// Where the scale of x is, of K block k of a token.
__device__ __forceinline__ size_t x_scale_index(int k, int token, int num_tokens) {
  return kScalesRowMajor ? (size_t)token * kNumKBlocks1 + k : (size_t)k * num_tokens + token;
}
// From a K block's scale of a token to the next one's.
__device__ __forceinline__ int x_scale_stride(int num_tokens) { return kScalesRowMajor ? 1 : num_tokens; }
