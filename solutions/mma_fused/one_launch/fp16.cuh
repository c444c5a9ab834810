// fp16: conversions to fp16 and products, as bits.
#pragma once
#include <cstdint>

namespace mma_fused {

// Two E4M3 values, the low one first, as two fp16. Exact. From sm_89 on.
__device__ __forceinline__ uint32_t cvt_e4m3x2_to_f16x2(uint16_t pair) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return halves;
}
// Products of two pairs of fp16.
__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ __forceinline__ uint16_t cvt_f32_to_f16(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

}  // namespace mma_fused
