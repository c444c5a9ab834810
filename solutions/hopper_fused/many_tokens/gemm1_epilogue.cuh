// gemm1_epilogue: where the epilogues of both kinds of tile put h and its scales, and their named barriers.
#pragma once
#include <cstdint>

#include "grouped_gemm.cuh"
#include "grouped_layer.cuh"
#include "numerics.cuh"

using Gemm1Smem = GemmSmem<1>;  // x has one part

// kBarGemm1Warpgroup is warpgroup 0's, the next id warpgroup 1's.
enum Gemm1Barrier { kBarGemm1Consumers = 1, kBarGemm1Warpgroup };

// From a row's largest absolute value: stores the scale, times the routing weight, and returns the scale's inverse.
__device__ __forceinline__ float store_scale(float* h_scale, float amax, float weight) {
  const float scale = row_scale(amax);
  *h_scale = scale * weight;
  return rcp_approx(scale);
}

// Where a tile's h begins: rows of 128 columns, swizzled.
template <int kHSplit>
__device__ __forceinline__ uint8_t* h_tile(const GroupedArgs& args, const WorkTile& tile, int part) {
  return args.h + (size_t)tile.expert_first * kIntermediate * kHSplit +
         (size_t)(tile.n_block * kHSplit + part) * tile.expert_rows * kBlockK + tile.m_first * kBlockK;
}
// Where its scales begin.
__device__ __forceinline__ float* h_scale_tile(const GroupedArgs& args, const WorkTile& tile) {
  return args.h_scale + (size_t)tile.expert_first * kNumKBlocks2 + tile.n_block * tile.expert_rows + tile.m_first;
}
