// many_h: what the two forms of gemm1 share: where h and its scales go.
#pragma once
#include "many_layer.cuh"
#include "swiglu_quant.cuh"

using Smem1 = ManySmem<1>;  // the ring holds x, which has one term
enum GemmBarrier { kBarAll = 1, kBarGroup };  // kBarGroup and the next: a warpgroup's

// From the row's largest value: stores the scale, which carries the routing weight on, and gives back its inverse.
__device__ __forceinline__ float store_scale(float* h_scale, float most, float weight) {
  const float scale = row_scale(most);
  *h_scale = scale * weight;
  return reciprocal(scale);
}

// For a warpgroup: counts it among those whose h so far is in memory. gemm2 reads by the copy engine, behind a fence.
__device__ __forceinline__ void tell_of_h(unsigned* counter) {
  if (threadIdx.x % kWarpgroup != 0) return;
  bulk_wait();
  arrive_gpu(counter);
}

// Where a tile's h begins: rows of 128 columns, swizzled.
template <int kTerms>
__device__ __forceinline__ uint8_t* h_at(const ManyArgs& a, const Item& item, int first_row, int rows, int term) {
  return a.h + (size_t)first_row * kInter * kTerms + (size_t)(item.column * kTerms + term) * rows * kBlock +
         item.first * kBlock;
}
