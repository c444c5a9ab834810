// tiled_mma: a weight tile times rows of an m_block, in fp16 with fp32 sums. Swap-AB: the weights are the MMA's A (its
// M is 16 weight rows), the rows of x or h its B (its N is 8 rows).
//
// A lane has g = lane / 4 and t = lane % 4. Of an m16n8k16 it holds A's rows g and g + 8, B's row g, and sums of weight
// rows g and g + 8 for rows 2 t and 2 t + 1. Which 16 of K an MMA takes does not matter as long as both operands agree:
// a lane takes K 32 t to 32 t + 31 of a K block, 16-byte loads, four values for each of eight MMAs.
#pragma once
#include "mma_fused/one_launch/fp16.cuh"
#include "common/cuda/ptx/mma.cuh"
#include "common/cuda/ptx/read_bits.cuh"
#include "mma_fused/one_launch/config.cuh"
#include "mma_fused/one_launch/weight_pipeline.cuh"

namespace mma_fused {

// Four E4M3 values as two pairs of fp16, in order. Times kUnpackScale, they are the values; NaN is 480 without cvt.
__device__ __forceinline__ void unpack(uint32_t four, uint32_t& low, uint32_t& high) {
#if MMA_FUSED_CVT
  low = cvt_e4m3x2_to_f16x2(four & 0xffff);
  high = cvt_e4m3x2_to_f16x2(four >> 16);
#else
  // Byte seeeemmm to the upper byte of each fp16; then the seven bits after the sign move right by one.
  const uint32_t two[2] = {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};
  low = (two[0] & 0x80008000u) | (two[0] >> 1 & 0x3f803f80u);
  high = (two[1] & 0x80008000u) | (two[1] >> 1 & 0x3f803f80u);
#endif
}
constexpr float kUnpackScale = Config::kCvt ? 1.0f : 256.0f;  // fp16's exponent has 8 more of bias

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A of four MMAs for each 16 rows of a weight tile: half of a lane's K.
struct WeightFragments {
  uint32_t a[Config::kMTiles][4][4];  // [16 weight rows][MMA][register]
};

// k_half: 0 or 1, of the lane's K. A quarter of the warp reads two rows at a time, 16-byte chunks 0, 2, 4, 6 of one and
// 1, 3, 5, 7 of the other after the swizzle: no bank conflicts. Returns the bits of what was read.
__device__ __forceinline__ uint32_t load_weights(WeightFragments& w, const uint8_t* weight_tile, int k_half) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const uint8_t* from = weight_tile + g * kBlockK + ((2 * t + k_half) ^ g) * 16;
  uint32_t read = 0;
#pragma unroll
  for (int m = 0; m < Config::kMTiles; m++) {
    const uint4 upper = *reinterpret_cast<const uint4*>(from + m * Config::kMmaM * kBlockK);
    const uint4 lower = *reinterpret_cast<const uint4*>(from + (m * Config::kMmaM + 8) * kBlockK);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      unpack(word_of(upper, i), w.a[m][i][0], w.a[m][i][2]);
      unpack(word_of(lower, i), w.a[m][i][1], w.a[m][i][3]);
    }
    read |= read_bits(upper, lower);
  }
  return read;
}

// acc += the weight tile that has arrived, times kNTiles tiles of 8 rows; releases its stage of the pipeline.
// get_rows(n, i, b0, b1): B of tile n for the lane's MMA i of 8. get_scale(n): of the lane's four sums for 16 weight
// rows and tile n, every K block's own. Applied to each half of K: unscaled sums of all tiles over both halves would
// take as many registers as acc.
template <int kNTiles, class GetRows, class GetScale>
__device__ __forceinline__ void multiply_weight_tile(WeightPipeline& weights, const uint8_t* weight_tile,
                                                     float (&acc)[kNTiles][Config::kMTiles][4], const GetRows& get_rows,
                                                     const GetScale& get_scale) {
  uint32_t read = 0;
#pragma unroll
  for (int k_half = 0; k_half < 2; k_half++) {
    WeightFragments w;
    read |= load_weights(w, weight_tile, k_half);
    if (k_half == 1) weights.consumer_release(read);
#pragma unroll
    for (int n = 0; n < kNTiles; n++) {
      uint32_t b[4][2];
#pragma unroll
      for (int i = 0; i < 4; i++) get_rows(n, 4 * k_half + i, b[i][0], b[i][1]);
      const float4 s = get_scale(n);
      const float scale[4] = {s.x, s.y, s.z, s.w};
      float sum[Config::kMTiles][4] = {};
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int m = 0; m < Config::kMTiles; m++) mma_m16n8k16(sum[m], w.a[m][i], b[i][0], b[i][1]);
      }
#pragma unroll
      for (int m = 0; m < Config::kMTiles; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) acc[n][m][c] += sum[m][c] * scale[c];
      }
    }
  }
}

}  // namespace mma_fused
