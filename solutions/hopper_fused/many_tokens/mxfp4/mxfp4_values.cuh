// mxfp4_values: MXFP4 weights as E4M3 with a power of two for a whole row, exactly.
//
// A weight is E2M1, two to a byte along K, times a power of two (E8M0) for each group of 32 of a row. Its row has a
// reference, another power of two; what is multiplied is E2M1 times 2^d, d the difference of the exponents. E2M1's
// values are multiples of 1/2 up to 6, and E4M3 has all multiples of 2^-9 that need three more bits, up to 448. The
// conversion sets E4M3's last bit to zero, which leaves multiples of 2^-8: with d from -7 to 6, the window, every value
// is exact.
#pragma once
#include <cstdint>

#include <cuda_runtime.h>

namespace hopper_fused {

constexpr int kScaleGroup = 32;                          // values with one scale
constexpr int kExponentsBelow = 7, kExponentsAbove = 6;  // of the reference: the window
constexpr int kExponents = kExponentsBelow + 1 + kExponentsAbove;
constexpr int kE8M0Bias = 127, kE8M0NaN = 255;

// E4M3 of E2M1's eight magnitudes times a power of two, four bytes to a word; and half of the negative ones' bytes.
struct E4M3Table {
  uint32_t positive[2], half_negative[2];
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
__host__ __device__ __forceinline__ E4M3Table e4m3_table(int power) {
  constexpr int kHalfSteps[2][4] = {{0, 1, 2, 3}, {4, 6, 8, 12}};  // E2M1's magnitudes, in order of code
  E4M3Table table;
  for (int word = 0; word < 2; word++) {
    table.positive[word] = 0;
    for (int i = 0; i < 4; i++) table.positive[word] |= e4m3_of(kHalfSteps[word][i], power) << 8 * i;
    table.half_negative[word] = (table.positive[word] | 0x80808080u) >> 1;
  }
  return table;
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

// The four values whose codes are in the low half of `packed`, in order of K. other_signs: packed ^ 0x88888888. A code's
// high bit is its sign, and the selector's fourth: so both lookups give zero for the codes of the other sign.
__host__ __device__ __forceinline__ uint32_t e4m3_of_four(uint32_t packed, uint32_t other_signs,
                                                          const E4M3Table& table) {
  const uint32_t positive = permute_bytes(table.positive[0], table.positive[1], packed);
  const uint32_t half_negative = permute_bytes(table.half_negative[0], table.half_negative[1], other_signs);
  return positive + 2 * half_negative;
}
__host__ __device__ __forceinline__ uint2 e4m3_of_eight(uint32_t packed, const E4M3Table& table) {
  const uint32_t other_signs = packed ^ 0x88888888u;
  return {e4m3_of_four(packed, other_signs, table), e4m3_of_four(packed >> 16, other_signs >> 16, table)};
}

// A scale as it is. 2^-127 is a denormal.
__device__ __forceinline__ float e8m0_value(int byte) {
  return __uint_as_float(byte == kE8M0NaN ? 0x7FC00000u : byte == 0 ? 0x00400000u : (uint32_t)byte << 23);
}
// 2^power, for powers that fp32 has.
__device__ __forceinline__ float power_of_two(int power) { return __int_as_float((power + 127) << 23); }

}  // namespace hopper_fused
