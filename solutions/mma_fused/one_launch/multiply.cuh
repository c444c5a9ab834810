// multiply: one unit of weights, times a chunk's rows, with m16n8k16 on fp16.
//
// A lane has g = lane / 4 and t = lane % 4. For an MMA, of A (weights) it gives rows g and g + 8, of B row g of the
// chunk's tile of 8, and receives sums of weight rows g and g + 8 for the chunk's rows 2 t and 2 t + 1. Of a unit's K
// it takes 32 t to 32 t + 31 of both operands: words of four values, one for each of eight MMAs. All lanes of a quad
// together give an MMA 16 of K, which 16 does not matter.
#pragma once
#include "fp16.cuh"
#include "mma.cuh"
#include "sizes.cuh"

// Four E4M3 values as two pairs of fp16, in order.
__device__ __forceinline__ void unpack(uint32_t four, uint32_t& low, uint32_t& high) {
#if MMA_FUSED_CVT
  low = cvt_e4m3x2_to_f16x2(four & 0xffff);
  high = cvt_e4m3x2_to_f16x2(four >> 16);
#else
  // Byte seeeemmm to the upper byte of each half; then the seven bits after the sign move by one.
  const uint32_t two[2] = {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};
  low = (two[0] & 0x80008000u) | (two[0] >> 1 & 0x3f803f80u);
  high = (two[1] & 0x80008000u) | (two[1] >> 1 & 0x3f803f80u);
#endif
}
// What `unpack` gives, times this, is the value: fp16's exponent has 8 more of bias.
constexpr float kUnpackScale = kCvt ? 1.0f : 256.0f;

// Half of a lane's K for a tile of 8 rows: B of four MMAs.
struct RowPiece {
  uint32_t word[4][2];
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A of four MMAs, half of a lane's K.
struct WeightPiece {
  uint32_t a[kMTiles][4][4];  // [tile of 16 weight rows][MMA][register]
};

// `half`: 0 or 1, of the lane's K. A quarter of the warp reads rows g, g + 1 at a time,
// pieces 0, 2, 4, 6 of one and 1, 3, 5, 7 of the other after the swizzle: no two in the same banks.
__device__ __forceinline__ void read_weights(WeightPiece& w, const uint8_t* unit, int half) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const uint8_t* from = unit + g * kBlockK + ((2 * t + half) ^ g) * 16;
#pragma unroll
  for (int m = 0; m < kMTiles; m++) {
    const uint4 upper = *reinterpret_cast<const uint4*>(from + m * kMmaM * kBlockK);
    const uint4 lower = *reinterpret_cast<const uint4*>(from + (m * kMmaM + 8) * kBlockK);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      unpack(word_of(upper, i), w.a[m][i][0], w.a[m][i][2]);
      unpack(word_of(lower, i), w.a[m][i][1], w.a[m][i][3]);
    }
  }
}

// acc += scale x (half of a unit . a tile of 8 rows). scale: of the sums 0 to 3 that a lane has in each tile of 16.
__device__ __forceinline__ void multiply(float (&acc)[kMTiles][4], const WeightPiece& w, const RowPiece& rows,
                                         const float (&scale)[4]) {
  float raw[kMTiles][4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int m = 0; m < kMTiles; m++) mma_m16n8k16(raw[m], w.a[m][i], rows.word[i][0], rows.word[i][1]);
  }
#pragma unroll
  for (int m = 0; m < kMTiles; m++) {
#pragma unroll
    for (int c = 0; c < 4; c++) acc[m][c] += raw[m][c] * scale[c];
  }
}
