// swiglu_quant: what every form of gemm1 does with its sums: SwiGLU, FP8 in one or two terms with a scale for a row, and
// four columns of a row into one word.
#pragma once
#include <cuda_fp16.h>

#include "ptx.cuh"

__device__ __forceinline__ float swiglu(float up, float gate) {
  return up * gate * rcp_approx(1.0f + exp2_approx(gate * -1.4426950408889634f));
}

// The scale with which a row's largest value becomes E4M3's, 448. A row of zeros has one too.
__device__ __forceinline__ float row_scale(float most) { return fmaxf(most * (1.0f / 448.0f), 0x1p-100f); }

// q[0]: two values in FP8; q[1]: in FP8 what that leaves of them.
template <int kTerms>
__device__ __forceinline__ void quantize_fp8(uint16_t (&q)[kTerms], float v0, float v1) {
  q[0] = __nv_cvt_float2_to_fp8x2(make_float2(v0, v1), __NV_SATFINITE, __NV_E4M3);
  if constexpr (kTerms == 2) {
    const float2 high = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(q[0], __NV_E4M3)));
    q[1] = __nv_cvt_float2_to_fp8x2(make_float2(v0 - high.x, v1 - high.y), __NV_SATFINITE, __NV_E4M3);
  }
}

// Where a lane's number is 4 column + ..., as wgmma lays sums out: its four bytes, numbered 0 to 3, against those of the
// lanes with the next three columns. Then the lane has one byte, that of its number lane / 4 % 4, of four columns.
__device__ __forceinline__ uint32_t transpose4(uint32_t mine) {
  const int lane = threadIdx.x % 32;
  uint32_t other = __shfl_xor_sync(0xffffffffu, mine, 4);
  mine = lane & 4 ? __byte_perm(mine, other, 0x3715) : __byte_perm(mine, other, 0x6240);
  other = __shfl_xor_sync(0xffffffffu, mine, 8);
  return lane & 8 ? __byte_perm(mine, other, 0x3276) : __byte_perm(mine, other, 0x5410);
}
