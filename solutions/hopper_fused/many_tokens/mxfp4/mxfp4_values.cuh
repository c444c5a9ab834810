// mxfp4_values: MXFP4 weights as E4M3 with a power of two for a whole row, exactly.
//
// A weight is E2M1, two to a byte along K, times a power of two (E8M0) for each group of 32 of a row. Its row has a
// reference, another power of two; what is multiplied is E2M1 times 2^d, d the difference of the exponents. E2M1's
// values are multiples of 1/2 up to 6, and E4M3 has all multiples of 2^-9 that need three more bits, up to 448: with d
// from -8 to 6, the window, every bit is kept.
#pragma once
#include <cstdint>

#include <cuda_runtime.h>

namespace hopper_fused {

constexpr int kScaleGroup = 32;                          // values with one scale
constexpr int kExponentsBelow = 8, kExponentsAbove = 6;  // of the reference: the window
constexpr int kExponents = kExponentsBelow + 1 + kExponentsAbove;
constexpr int kE8M0Bias = 127, kE8M0NaN = 255;

// Bytes of E4M3 for E2M1's eight magnitudes, times a power of two.
struct Magnitudes {
  uint32_t low, high;
};

// E4M3 of half_steps / 2 * 2^power, exactly.
__host__ __device__ __forceinline__ uint32_t e4m3_of(int half_steps, int power) {
  if (half_steps == 0) return 0;
  int top = 0;
  while (half_steps >> (top + 1)) top++;
  const int exponent = top - 1 + power;  // the value is 1.x * 2^exponent
  if (exponent >= -6) return (uint32_t)((exponent + 7) << 3 | (half_steps << 3 >> top & 7));
  return (uint32_t)(half_steps << (power + 8));  // subnormal: multiples of 2^-9
}
__host__ __device__ __forceinline__ Magnitudes magnitudes_of(int power) {
  return {e4m3_of(0, power) | e4m3_of(1, power) << 8 | e4m3_of(2, power) << 16 | e4m3_of(3, power) << 24,
          e4m3_of(4, power) | e4m3_of(6, power) << 8 | e4m3_of(8, power) << 16 | e4m3_of(12, power) << 24};
}

// prmt: byte i is the one of {low, high} that the low three bits of the selector's nibble i name; where its fourth bit
// is set, eight times that byte's sign. On the host for tests.
__host__ __device__ __forceinline__ uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes = 0;
#ifdef __CUDA_ARCH__
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
#else
  for (int i = 0; i < 4; i++) {
    const uint32_t nibble = selector >> 4 * i & 15, byte = (nibble & 4 ? high : low) >> 8 * (nibble & 3) & 255;
    bytes |= (nibble & 8 ? byte >> 7 ? 255u : 0u : byte) << 8 * i;
  }
#endif
  return bytes;
}

// The four values whose codes are in the low half of `packed`, in order of K.
__host__ __device__ __forceinline__ uint32_t e4m3_of_four(uint32_t packed, uint32_t codes, const Magnitudes& magnitudes) {
  // a byte of 0x80, or 0xff where the code is negative: bit 6 is the sign
  const uint32_t signs = permute_bytes(0x80808080u, 0x80808080u, packed) << 1;
  return permute_bytes(magnitudes.low, magnitudes.high, codes) | (signs & 0x80808080u);
}
__host__ __device__ __forceinline__ uint2 e4m3_of_eight(uint32_t packed, const Magnitudes& magnitudes) {
  const uint32_t codes = packed & 0x77777777u;
  return {e4m3_of_four(packed, codes, magnitudes), e4m3_of_four(packed >> 16, codes >> 16, magnitudes)};
}

// A scale as it is. 2^-127 is a denormal.
__device__ __forceinline__ float e8m0_value(int byte) {
  return __uint_as_float(byte == kE8M0NaN ? 0x7FC00000u : byte == 0 ? 0x00400000u : (uint32_t)byte << 23);
}
// 2^power, for powers that fp32 has.
__device__ __forceinline__ float power_of_two(int power) { return __int_as_float((power + 127) << 23); }

}  // namespace hopper_fused
