// mxfp4_values: MXFP4 weights as E4M3 with a power of two for a whole row, exactly.
//
// A weight is an E2M1 value, two to a byte along K, times a power of two (E8M0) that each group of 32 values of a row
// has. The row as a whole gets one more power of two, its reference. What is multiplied is E2M1 times 2^d, where d is
// the group's exponent less the reference's.
//
// E2M1's values are multiples of 1/2 up to 6, with two significant bits. E4M3 has four significant bits, its smallest
// value is 2^-9, its largest 448. So with d from -8 to 6, the window, every bit is kept.
#pragma once
#include <cstdint>

#include <cuda_runtime.h>

namespace hopper_fused {

constexpr int kScaleGroup = 32;                          // values with one scale
constexpr int kExponentsBelow = 8, kExponentsAbove = 6;  // of the reference: the window
constexpr int kExponents = kExponentsBelow + 1 + kExponentsAbove;
constexpr int kE8M0Bias = 127, kE8M0NaN = 255;

// E2M1's eight magnitudes times a power of two, a byte of E4M3 each: a table for permute_bytes.
struct Magnitudes {
  uint32_t low, high;
};

// Returns half_steps / 2 * 2^power as a byte of E4M3, exactly.
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

// The instruction prmt. Nibble i of the selector chooses byte i of the result: its low three bits name a byte of {low,
// high}; where its fourth bit is set, the result is eight times that byte's sign bit instead. Also on the host, for
// tests.
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

// Returns, in order of K, four values in E4M3, whose E2M1 codes are in the low half of `packed`. codes: `packed`
// without signs.
__host__ __device__ __forceinline__ uint32_t e4m3_of_four(uint32_t packed, uint32_t codes,
                                                          const Magnitudes& magnitudes) {
  // a byte of 0x80, or 0xff where the code is negative: bit 6 is the sign
  const uint32_t signs = permute_bytes(0x80808080u, 0x80808080u, packed) << 1;
  return permute_bytes(magnitudes.low, magnitudes.high, codes) | (signs & 0x80808080u);
}
__host__ __device__ __forceinline__ uint2 e4m3_of_eight(uint32_t packed, const Magnitudes& magnitudes) {
  const uint32_t codes = packed & 0x77777777u;
  return {e4m3_of_four(packed, codes, magnitudes), e4m3_of_four(packed >> 16, codes >> 16, magnitudes)};
}

// Returns the value of an E8M0 scale. The smallest, 2^-127, is a denormal in fp32.
__device__ __forceinline__ float e8m0_value(int byte) {
  return __uint_as_float(byte == kE8M0NaN ? 0x7FC00000u : byte == 0 ? 0x00400000u : (uint32_t)byte << 23);
}
// 2^power, for powers that fp32 has.
__device__ __forceinline__ float power_of_two(int power) { return __int_as_float((power + 127) << 23); }

}  // namespace hopper_fused
