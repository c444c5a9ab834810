// mxfp4_weights: MXFP4 weights as wgmma's A in registers, and their scales.
//
// A weight is E2M1, two to a byte along K, with a power of two (E8M0) for each group of 32 of a row. The bits of E2M1 in
// the middle of a byte of E4M3 are 2^-6 of its value, subnormal numbers too, so the conversion is shifts and masks. 2^6
// is in the scales of x and h. A group is one wgmma's K: its scale is applied to the product's sums in fp32, whatever it
// is, so nothing has to be in the range of E4M3.
//
// Order of K: a lane has four bytes of each group, the low halves of which are one register of A, the high ones another.
// So of the 32 values of a group the even ones come first, and x and h are stored in that order (k_position).
#pragma once
#include <cstdint>

#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/ptx/smem_addr.cuh"
#include "common/cuda/ptx/wgmma_registers.cuh"

namespace hopper_fused {

constexpr int kGroupK = 32;       // values with one scale
constexpr int kGroups = 4;        // of a K block
constexpr int kStepScaleBytes = kGroups * Config::kStepBlocks;  // scales of a row of a weight tile
static_assert(!kMxfp4Weights || (Config::kStepBlocks == 2 && kGroupK == kMmaK && kGroups * kGroupK == kBlockK),
              "a weight tile is 256 of K, and a group is one wgmma's K");

// The accumulator's row g of 8 stands for this row of an atom of W13, so that four lanes' columns of h lie together.
__device__ __forceinline__ int w13_row(int g) { return g < 4 ? 2 * g : 2 * g - 7; }

// ---- weights ----

// 8 values as E4M3, times 2^-6: those of the four low halves, and of the high ones.
__device__ __forceinline__ void e4m3_of_e2m1(uint32_t packed, uint32_t& even, uint32_t& odd) {
  even = ((packed << 2) & 0x1C1C1C1Cu) | ((packed << 4) & 0x80808080u);
  odd = ((packed >> 2) & 0x1C1C1C1Cu) | (packed & 0x80808080u);
}

// A lane's bytes of a K block: of each group and of two rows that are 8 apart.
using Packed = uint32_t[2 * kGroups];
// Registers of A for the four wgmmas of a K block.
using Converted = uint32_t[kGroups][4];

// Where a lane's bytes are in a weight tile: offsets for the four groups of its first K block. The second K block's have
// bit 6 flipped.
struct TileOffsets {
  uint32_t group[kGroups];
  // row: in its atom
  __device__ TileOffsets(int warp, int row) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int j = 0; j < kGroups; j++)
      group[j] = warp * 2 * kAtomBytes + row * kAtomRowBytes + ((j ^ row) * 16) + 4 * (lane % kQuad);
  }
};

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void load_packed(Packed& packed, uint32_t tile, const TileOffsets& offsets, int k_block) {
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    const uint32_t address = tile + (offsets.group[j] ^ k_block * 64);
    packed[2 * j] = load_shared(address);
    packed[2 * j + 1] = load_shared(address + kAtomBytes);
  }
}
__device__ __forceinline__ void convert(Converted& a, const Packed& packed) {
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    e4m3_of_e2m1(packed[2 * j], a[j][0], a[j][2]);
    e4m3_of_e2m1(packed[2 * j + 1], a[j][1], a[j][3]);
  }
}

// ---- scales ----

// The scales of two rows of a weight tile, a word for each K block.
struct StepScales {
  uint32_t row[2][Config::kStepBlocks];
};

// Of a row of kRowBytes scales those of step k; 1 beyond the end, where weights are zeros.
template <int kRowBytes>
__device__ __forceinline__ void load_step_scales(uint32_t (&scales)[Config::kStepBlocks], const uint8_t* row, int k) {
  if constexpr (kRowBytes % kStepScaleBytes == 0) {
    const uint2 both = __ldg(reinterpret_cast<const uint2*>(row + k * kStepScaleBytes));
    scales[0] = both.x, scales[Config::kStepBlocks - 1] = both.y;
  } else {
#pragma unroll
    for (int b = 0; b < Config::kStepBlocks; b++) {
      const int at = k * kStepScaleBytes + b * kGroups;
      scales[b] = at < kRowBytes ? __ldg(reinterpret_cast<const uint32_t*>(row + at)) : 0x7F7F7F7Fu;
    }
  }
}
template <int kRowBytes>
__device__ __forceinline__ StepScales load_scales(const uint8_t* row0, const uint8_t* row1, int k) {
  StepScales scales;
  if (kRowBytes % kStepScaleBytes == 0 && k * kStepScaleBytes >= kRowBytes) k = 0;  // beyond K; weights are zeros
  load_step_scales<kRowBytes>(scales.row[0], row0, k);
  load_step_scales<kRowBytes>(scales.row[1], row1, k);
  return scales;
}

// Whether a lane of the warp has a scale outside 2^-63 to 2^64: of those, 0 and 255 are not exponents of fp32.
__device__ __forceinline__ bool any_unusual(const StepScales& scales) {
  uint32_t usual = 0x80808080u;  // the first two bits of a usual byte differ
#pragma unroll
  for (int b = 0; b < Config::kStepBlocks; b++) {
    usual &= scales.row[0][b] ^ (scales.row[0][b] << 1);
    usual &= scales.row[1][b] ^ (scales.row[1][b] << 1);
  }
  return __any_sync(kFullWarp, usual != 0x80808080u);
}
__device__ __forceinline__ float any_scale(uint32_t byte) {
  return __uint_as_float(byte == 255 ? 0x7FC00000u : byte == 0 ? 0x00400000u : byte << 23);
}
// A row's four scales of a K block.
__device__ __forceinline__ void scales_of(float (&scale)[kGroups], uint32_t bytes, bool unusual) {
  if (unusual) {
#pragma unroll
    for (int j = 0; j < kGroups; j++) scale[j] = any_scale(bytes >> 8 * j & 255);
    return;
  }
#pragma unroll
  for (int j = 0; j < kGroups; j++)
    scale[j] = __uint_as_float((j == 3 ? bytes >> 1 : bytes << (23 - 8 * j)) & 0x7F800000u);
}

// ---- wgmma ----

// Keeps the compiler from moving what writes these registers behind this point.
template <int N>
__device__ __forceinline__ void fence_operands(Converted& a, float (&raw)[kGroups][N / 2]) {
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    warpgroup_fence_operand(raw[j]);
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[j][i])::"memory");
  }
}

}  // namespace hopper_fused
