// weight_scales: gemm1's scales of one weight block, one per K step. A warp reads all of them when it begins a tile and
// spreads them over its lanes. Read step by step they would arrive just in time, and sometimes late, from DRAM.
#pragma once
#include "fused_layer.cuh"

struct WeightScales {
  float low, high;  // of K steps lane and 32 + lane
  __device__ explicit WeightScales(const float* scales)
      : low((int)threadIdx.x % kWarp < kNumKBlocks1 ? __ldg(scales + threadIdx.x % kWarp) : 0.0f),
        high((int)threadIdx.x % kWarp < kNumKBlocks1 - kWarp ? __ldg(scales + kWarp + threadIdx.x % kWarp) : 0.0f) {}
  // For a whole warp.
  __device__ float of(int k) const { return __shfl_sync(kFullWarp, k < kWarp ? low : high, k % kWarp); }
};
