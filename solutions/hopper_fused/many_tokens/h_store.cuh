// many_h: what the two forms of gemm1 share: where h and its scales go.
#pragma once
#include "many_tokens.cuh"
#include "swiglu_quant.cuh"

using Gemm1Smem = GemmSmem<1>;  // the ring holds x, which has one term
enum GemmBarrier { kBarAll = 1, kBarGroup };  // kBarGroup and the next: a warpgroup's

// From the row's largest value: stores the scale, which carries the routing weight on, and gives back its inverse.
__device__ __forceinline__ float store_scale(float* h_scale, float most, float weight) {
  const float scale = row_scale(most);
  *h_scale = scale * weight;
  return rcp_approx(scale);
}

// For a warpgroup: counts it among those whose h so far is in memory. gemm2 reads by the copy engine, behind a fence.
__device__ __forceinline__ void signal_h_stored(unsigned* counter) {
  if (threadIdx.x % kWarpgroupThreads != 0) return;
  bulk_wait();
  counter_arrive(counter);
}

// Where a tile's h begins: rows of 128 columns, swizzled.
template <int kTerms>
__device__ __forceinline__ uint8_t* h_tile(const ManyArgs& args, const WorkTile& tile, int first_row, int rows, int term) {
  return args.h + (size_t)first_row * kInter * kTerms + (size_t)(tile.column * kTerms + term) * rows * kBlockK +
         tile.first * kBlockK;
}
