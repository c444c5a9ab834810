// numerics: approximate functions, SwiGLU, FP8 with one scale per row as one value or as hi and lo, bf16, scaled fp16.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "common/cuda/layer/interface.cuh"
#include "common/cuda/layer/problem.cuh"
#include "common/cuda/pipeline/threads.cuh"

// One instruction each: relative error below 2^-22, denormals count as zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The smaller of two values; NaN if one is NaN, where fminf would drop it.
__device__ __forceinline__ float min_nan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
__device__ __forceinline__ float clamp_nan(float x, float limit) { return -min_nan(-min_nan(x, limit), limit); }

constexpr float kMinusLog2E = -1.4426950408889634f;
// silu(gate) * up, or one of the clamped forms of it: s * (up + offset) with s = gate * sigmoid(alpha * gate).
__device__ __forceinline__ float swiglu(float up, float gate) {
  if constexpr (kSwigluLimit == 0.0f) return up * gate * rcp_approx(1.0f + exp2_approx(gate * kMinusLog2E));
  if constexpr (!kClampAfterSilu) gate = min_nan(gate, kSwigluLimit);
  float s = gate * rcp_approx(1.0f + exp2_approx(gate * (kSwigluAlpha * kMinusLog2E)));
  if constexpr (kClampAfterSilu) s = min_nan(s, kSwigluLimit);
  return s * (clamp_nan(up, kSwigluLimit) + kSwigluUpOffset);
}
// SwiGLU of the sums of W13's first and second half, of which kGateFirst says which is gate.
__device__ __forceinline__ float swiglu_of_halves(float first, float second) {
  return kGateFirst ? swiglu(second, first) : swiglu(first, second);
}

// The scale that maps a row's largest absolute value to E4M3's largest, 448. It is not zero for a row of zeros.
__device__ __forceinline__ float row_scale(float amax) { return fmaxf(amax * (1.0f / 448.0f), 0x1p-100f); }

// Two values v as FP8. q[0] is hi = fp8(v); q[1], with kHSplit 2, lo = fp8(v - hi).
template <int kHSplit>
__device__ __forceinline__ void quantise_fp8(uint16_t (&q)[kHSplit], float v0, float v1) {
  q[0] = __nv_cvt_float2_to_fp8x2(make_float2(v0, v1), __NV_SATFINITE, __NV_E4M3);
  if constexpr (kHSplit == 2) {
    const float2 high = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(q[0], __NV_E4M3)));
    q[1] = __nv_cvt_float2_to_fp8x2(make_float2(v0 - high.x, v1 - high.y), __NV_SATFINITE, __NV_E4M3);
  }
}

// 4 x 4 bytes transposed between the four lanes that differ in bits 2 and 3 of their number, which have neighbouring
// rows of an accumulator: before, a lane has bytes 0 to 3 of its accumulator row; after, byte lane / 4 % 4 of all four.
__device__ __forceinline__ uint32_t transpose4(uint32_t mine) {
  const int lane = threadIdx.x % kWarp;
  uint32_t other = __shfl_xor_sync(kFullWarp, mine, 4);
  mine = lane & 4 ? __byte_perm(mine, other, 0x3715) : __byte_perm(mine, other, 0x6240);
  other = __shfl_xor_sync(kFullWarp, mine, 8);
  return lane & 8 ? __byte_perm(mine, other, 0x3276) : __byte_perm(mine, other, 0x5410);
}

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
// The low and the high bf16 of a pair.
__device__ __forceinline__ float2 unpack_bf16(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// ---- scaled fp16: a power of two times fp16, with 8 times bf16's precision ----

// The power of two for sums of absolute value `bound` at most, which become 2^15 at most. fp16 keeps all its bits down
// to 2^-14: under a bound that is 2^20 times too large, those of sums down to 2^-9 of the largest.
__device__ __forceinline__ float fp16_scale(float bound) {
  const int exponent = (__float_as_int(bound) >> 23) - 14;  // biased; inf and NaN give a large one
  return __int_as_float(max(exponent, 1) << 23);
}
// 1 / scale, exactly.
__device__ __forceinline__ float inverse_power_of_two(float scale) {
  return __int_as_float((254 << 23) - __float_as_int(scale));
}
__device__ __forceinline__ unsigned pack_fp16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
