// read_bits: a number made of the bits of values that a thread has loaded. When it is in a register, all loads have
// arrived; barrier.cuh's releases make an arrival depend on it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

__device__ __forceinline__ uint32_t read_bits() { return 0; }
__device__ __forceinline__ uint32_t read_bits(uint32_t v) { return v; }
__device__ __forceinline__ uint32_t read_bits(float v) { return __float_as_uint(v); }
__device__ __forceinline__ uint32_t read_bits(const float2& v) { return __float_as_uint(v.x) | __float_as_uint(v.y); }
// One word is enough, because the registers of a 16-byte load arrive together.
__device__ __forceinline__ uint32_t read_bits(const uint4& v) { return v.x; }
template <class T, int N>
__device__ __forceinline__ uint32_t read_bits(const T (&v)[N]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < N; i++) bits |= read_bits(v[i]);
  return bits;
}
template <class First, class Second, class... Others>
__device__ __forceinline__ uint32_t read_bits(const First& first, const Second& second, const Others&... others) {
  return read_bits(first) | read_bits(second, others...);
}
