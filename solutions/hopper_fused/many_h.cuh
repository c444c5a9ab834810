// many_h: what the two forms of gemm1 share: SwiGLU, FP8 terms, and where h and its scales go.
#pragma once
#include <cuda_fp16.h>

#include "many_layer.cuh"

using Smem1 = ManySmem<1>;  // the ring holds x, which has one term
enum GemmBarrier { kBarAll = 1, kBarGroup };  // kBarGroup and the next: a warpgroup's

// The weight blocks' scales of a tile, one a K step, spread over a warp's lanes: a step must not wait for memory.
struct StepScales {
  float low, high;
  __device__ explicit StepScales(const float* scales)
      : low(__ldg(scales + threadIdx.x % 32)),
        high(threadIdx.x % 32 < kK1 - 32 ? __ldg(scales + 32 + threadIdx.x % 32) : 0.0f) {}
  __device__ float of(int k) const { return __shfl_sync(0xffffffffu, k < 32 ? low : high, k % 32); }
};

__device__ __forceinline__ float swiglu(float up, float gate) {
  return up * gate * reciprocal(1.0f + exp2_approximate(gate * -1.4426950408889634f));
}

// q[0]: two values in FP8; q[1]: in FP8 what that leaves of them.
template <int kTerms>
__device__ __forceinline__ void quantise(uint16_t (&q)[kTerms], float v0, float v1) {
  q[0] = __nv_cvt_float2_to_fp8x2(make_float2(v0, v1), __NV_SATFINITE, __NV_E4M3);
  if constexpr (kTerms == 2) {
    const float2 high = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(q[0], __NV_E4M3)));
    q[1] = __nv_cvt_float2_to_fp8x2(make_float2(v0 - high.x, v1 - high.y), __NV_SATFINITE, __NV_E4M3);
  }
}

// From the row's largest value: stores the scale, which carries the routing weight on, and gives back its inverse.
__device__ __forceinline__ float store_scale(float* h_scale, float most, float weight) {
  const float scale = most > 0.0f ? most / 448.0f : 1.0f;
  *h_scale = scale * weight;
  return 1.0f / scale;
}

// Where a tile's h begins: rows of 128 columns, swizzled.
template <int kTerms>
__device__ __forceinline__ uint8_t* h_at(const ManyArgs& a, const Item& item, int first_row, int rows, int term) {
  return a.h + (size_t)first_row * kInter * kTerms + (size_t)(item.column * kTerms + term) * rows * kBlock +
         item.first * kBlock;
}
