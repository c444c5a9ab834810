// weight_scales: a weight block's scales in gemm1, one a K step. A warp reads them all when it begins a tile and has them
// spread over its lanes: read step by step they come just in time, and now and then from DRAM.
#pragma once
#include "fused_layer.cuh"

struct WeightScales {
  float low, high;
  __device__ explicit WeightScales(const float* scales)
      : low((int)threadIdx.x % 32 < kKSteps1 ? __ldg(scales + threadIdx.x % 32) : 0.0f),
        high((int)threadIdx.x % 32 < kKSteps1 - 32 ? __ldg(scales + 32 + threadIdx.x % 32) : 0.0f) {}
  // For a whole warp.
  __device__ float of(int k) const { return __shfl_sync(0xffffffffu, k < 32 ? low : high, k % 32); }
};
