// mxfp4_weights: MXFP4 weights as wgmma's A in registers, and their scales.
//
// A weight is E2M1, two to a byte along K, with a power of two (E8M0) for each group of 32 of a row. The bits of E2M1 in
// the middle of a byte of E4M3 are 2^-6 of its value, subnormal numbers too, so the conversion is shifts and masks. 2^6
// is in the scales of x and h. A group is one wgmma's K: its scale is applied to the product's sums in fp32, whatever it
// is, so nothing has to be in the range of E4M3.
//
// What a warp issues bounds the GEMMs, not memory: every instruction here is there for each 8 weights of a lane.
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

// What carries a sign from bit 5 of a byte to bit 7: 96. A lane's number is below 32, which ptxas does not know: of a
// constant that it knows it makes two instructions of a multiplication and an addition.
__device__ __forceinline__ uint32_t sign_carry() {
  uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return 0x60606060u + lane / kWarp;
}

// 8 values as E4M3, times 2^-6: those of the four low halves, and of the high ones. A low half has its sign at bit 5
// when it is multiplied by 4, and 96 more moves it to bit 7; without a sign the 96 is masked.
__device__ __forceinline__ void e4m3_of_e2m1(uint32_t packed, uint32_t carry, uint32_t& even, uint32_t& odd) {
  uint32_t carried;
  asm("mad.lo.u32 %0, %1, 4, %2;" : "=r"(carried) : "r"(packed & 0x0F0F0F0Fu), "r"(carry));
  even = carried & 0x9C9C9C9Cu;
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
__device__ __forceinline__ void convert(Converted& a, const Packed& packed, uint32_t carry) {
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    e4m3_of_e2m1(packed[2 * j], carry, a[j][0], a[j][2]);
    e4m3_of_e2m1(packed[2 * j + 1], carry, a[j][1], a[j][3]);
  }
}
// Keeps the compiler from converting them before this point.
__device__ __forceinline__ void hold(Packed& packed) {
#pragma unroll
  for (int j = 0; j < 2 * kGroups; j++) asm volatile("" : "+r"(packed[j])::"memory");
}

// ---- scales ----

// The scales of two rows of a weight tile, a word for each K block.
struct StepScales {
  uint32_t row[2][Config::kStepBlocks];
};

// Of a row of kRowBytes scales those of step k; where a row ends within a step, 1 beyond its end, as weights are zeros there.
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

// Two rows of scales, and the steps of them that a warpgroup takes: `count` from `first` on, each `stride` behind the
// one before.
struct ScaleRows {
  const uint8_t* row[2];
  int first, stride, count;
};
template <int kRowBytes>
__device__ __forceinline__ StepScales load_scales(const ScaleRows& rows, int nth) {
  StepScales scales;
  int k = rows.first + rows.stride * nth;
  if (kRowBytes % kStepScaleBytes == 0 && k * kStepScaleBytes >= kRowBytes) k = 0;  // beyond K; weights are zeros
  load_step_scales<kRowBytes>(scales.row[0], rows.row[0], k);
  load_step_scales<kRowBytes>(scales.row[1], rows.row[1], k);
  return scales;
}

// As bf16, two to a word: [row][K block][which two of its groups].
struct ScalePairs {
  uint32_t row[2][Config::kStepBlocks][kGroups / 2];
};

// Whether a lane of the warp has a scale outside 2^-63 to 2^64: of those, 0 and 255 are not exponents of bf16.
__device__ __forceinline__ bool any_unusual(const StepScales& scales) {
  uint32_t usual = 0x80808080u;  // a usual byte has its first bit with 64 more; one that carries is not usual itself
#pragma unroll
  for (int b = 0; b < Config::kStepBlocks; b++)
    usual &= (scales.row[0][b] + 0x40404040u) & (scales.row[1][b] + 0x40404040u);
  return __any_sync(kFullWarp, usual != 0x80808080u);
}
// What two bytes, each in 16 bits, want beside their exponent: the first bit of the fraction of 0, which is 2^-127, and
// of 255, which is NaN.
__device__ __forceinline__ uint32_t unusual_fraction(uint32_t two) {
  const uint32_t others = (two + 0x00010001u) & 0x00FE00FEu;  // 0 of 0 and 255
  return (~(others + 0x00FE00FEu) & 0x01000100u) >> 2;
}
__device__ __forceinline__ ScalePairs pairs_of(const StepScales& scales) {
  const bool unusual = any_unusual(scales);
  ScalePairs pairs;
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int b = 0; b < Config::kStepBlocks; b++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t two = __byte_perm(scales.row[r][b], 0, h == 0 ? 0x4140 : 0x4342);
        pairs.row[r][b][h] = two << 7;
        if (unusual) pairs.row[r][b][h] |= unusual_fraction(two);
      }
    }
  }
  return pairs;
}
// Of two rows those of a K block's groups.
__device__ __forceinline__ void scales_of(float (&scale)[2][kGroups], const ScalePairs& pairs, int k_block) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int j = 0; j < kGroups; j++) {
      const uint32_t pair = pairs.row[r][k_block][j / 2];
      scale[r][j] = __uint_as_float(j % 2 ? pair & 0xFFFF0000u : pair << 16);
    }
  }
}

// A warpgroup's scales, which no stage has room for: four steps at a time, one for each lane of a quad, whose lanes
// have the same rows. They are requested four steps ahead, at the end of a tile those of the next one, so that a tile
// begins without waiting for them.
template <int kRowBytes>
struct ScaleReader {
  ScaleRows rows, next_rows;  // of this tile and of the next
  StepScales requested;       // this lane's of the next four steps
  ScalePairs four;            // this lane's of these four

  __device__ __forceinline__ void request(const ScaleRows& from, int step) {
    requested = load_scales<kRowBytes>(from, min(step + (int)threadIdx.x % kQuad, from.count - 1));
  }
  // Before the first tile.
  __device__ __forceinline__ void begin(const ScaleRows& first) {
    next_rows = first;
    request(first, 0);
  }
  // At the beginning of each tile. after: the tile's behind it, or any.
  __device__ __forceinline__ void next_tile(const ScaleRows& after) {
    rows = next_rows;
    next_rows = after;
  }
  // Instead of reading the tile's.
  __device__ __forceinline__ void skip_tile() { request(next_rows, 0); }
  // Those of each step, in order.
  __device__ __forceinline__ ScalePairs read(int step) {
    if (step % kQuad == 0) {
      four = pairs_of(requested);
      if (step + kQuad < rows.count) request(rows, step + kQuad);
      else request(next_rows, 0);
    }
    ScalePairs pairs;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int b = 0; b < Config::kStepBlocks; b++) {
#pragma unroll
        for (int h = 0; h < 2; h++)
          pairs.row[r][b][h] = __shfl_sync(kFullWarp, four.row[r][b][h], step % kQuad, kQuad);
      }
    }
    return pairs;
  }
};

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
