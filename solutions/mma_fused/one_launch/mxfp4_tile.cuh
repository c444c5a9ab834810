// mxfp4_tile: a weight tile times rows of an m_block, where the weights are MXFP4; tiled_mma.cuh does it for FP8. A
// weight is an E2M1 value, two to a byte along K. Each group of 32 of a row has a power of two (E8M0) as scale.
//
// The three bits of E2M1 after the sign, put where fp16 has the low two bits of its exponent and the high bit of its
// mantissa, are 2^-14 times the value, exactly, also where the value is subnormal. A group is the K of two MMAs. Their
// sums are multiplied by the scale in fp32, so that no scale can leave fp16's range.
//
// Order of K: lane 4 g + t has four bytes of each group, K 8 t to 8 t + 7. The even K, which are the low halves of the
// bytes, go into the first MMA, the odd K into the second. x and h are taken in the same order.
#pragma once
#include "mma_fused/one_launch/tiled_mma.cuh"

namespace mma_fused {

constexpr float kMxfp4UnpackScale = 0x1p14f;  // fp16's bias of exponents is 15, E2M1's 1

static_assert(!kMxfp4Weights || kGroupK == Config::kNBlockColumns, "a group of gemm2 has one scale of h");
static_assert(kGroups == sizeof(uint32_t), "the scales of a K block are a word");

// Eight E2M1 values as pairs of fp16: 0 and 2, 4 and 6, 1 and 3, 5 and 7. Times kMxfp4UnpackScale, they are the values.
__device__ __forceinline__ void unpack_e2m1(uint32_t eight, uint32_t (&pairs)[4]) {
  // upper bytes of fp16: s000eem0
  const uint32_t even = (eight << 1 & 0x0e0e0e0eu) | (eight << 4 & 0x80808080u);
  const uint32_t odd = (eight >> 3 & 0x0e0e0e0eu) | (eight & 0x80808080u);
  pairs[0] = __byte_perm(even, 0, 0x1404), pairs[1] = __byte_perm(even, 0, 0x3424);
  pairs[2] = __byte_perm(odd, 0, 0x1404), pairs[3] = __byte_perm(odd, 0, 0x3424);
}

// The operand A of a group's two MMAs, for each 16 rows of a weight tile.
struct GroupFragments {
  uint32_t a[Config::kMTiles][2][4];  // [16 weight rows][MMA][register]
};

// Loads group j of all rows of a weight tile, eight rows at a time, without bank conflicts. Returns the OR of what was
// read, which is for consumer_release: it may not release the stage before these loads are over.
__device__ __forceinline__ uint32_t load_group(GroupFragments& w, const uint8_t* weight_tile, int j) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const uint8_t* from = weight_tile + g * Config::kTileRowBytes + swizzled(j, g) * 16 + 4 * t;
  uint32_t read = 0;
#pragma unroll
  for (int m = 0; m < Config::kMTiles; m++) {
#pragma unroll
    for (int eighth = 0; eighth < 2; eighth++) {  // row g, row g + 8
      const int row = m * Config::kMmaM + 8 * eighth;
      const uint32_t packed = *reinterpret_cast<const uint32_t*>(from + row * Config::kTileRowBytes);
      uint32_t pairs[4];
      unpack_e2m1(packed, pairs);
      w.a[m][0][eighth] = pairs[0], w.a[m][0][2 + eighth] = pairs[1];
      w.a[m][1][eighth] = pairs[2], w.a[m][1][2 + eighth] = pairs[3];
      read |= packed;
    }
  }
  return read;
}

// ---- scales ----

// The exact value of a scale's byte: 2^(byte - 127), or NaN for 255.
__device__ __forceinline__ float scale_of_byte(uint32_t byte) {
  const uint32_t bits = byte << 23;
  return __uint_as_float(byte == 0 || byte == 255 ? bits | 0x00400000u : bits);  // 2^-127 is subnormal
}

// For a whole warp: converts a weight tile's scales to fp32, those of two rows in each lane. It is done once, in shared
// memory, because four lanes need each scale. `wide` may be overwritten by the next call: consumer_wait() stands
// between the reads of `wide` and that call.
__device__ __forceinline__ void widen_scales(WideScales& wide, const uint32_t* words) {
  const int lane = threadIdx.x % kWarp, g = lane % 8, eighth = lane / 8;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t four = words[kWarp * i + lane];
#pragma unroll
    for (int j = 0; j < kGroups; j++) wide[j][g][4 * i + eighth] = scale_of_byte(four >> 8 * j & 255);
  }
  __syncwarp();  // wide
}

// ---- product ----

// acc += the weight tile that has arrived, times kNTiles tiles of 8 rows. Releases the weight tile's stage.
//   get_rows(n, j, half, b0, b1)   sets the operand B of tile n, for the first or second MMA (half) of group j
//   get_scale(n, j)                returns the scales of rows 2 t and 2 t + 1 of tile n: for group j with
//                                  kScalePerGroup, else for the whole K block
template <bool kScalePerGroup, int kNTiles, class GetRows, class GetScale>
__device__ __forceinline__ void multiply_mxfp4_tile(WeightPipeline& weights, const uint8_t* weight_tile,
                                                    float (&acc)[kNTiles][Config::kMTiles][4], const GetRows& get_rows,
                                                    const GetScale& get_scale) {
  WideScales& scales = weights.wide_scales();
  widen_scales(scales, weights.scales());
  const int g = weights.lane / 4;
  float block[kNTiles][Config::kMTiles][4] = {};  // sums of the K block, without scales of rows
  uint32_t read = 0;
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    GroupFragments w;
    read |= load_group(w, weight_tile, j);
    if (j == kGroups - 1) weights.consumer_release(read);

    const float4 low = *reinterpret_cast<const float4*>(&scales[j][g][0]);
    const float4 high = *reinterpret_cast<const float4*>(&scales[j][g][4]);
    const float w_scale[Config::kMTiles][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
#pragma unroll
    for (int n = 0; n < kNTiles; n++) {
      float sum[Config::kMTiles][4] = {};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint32_t b0, b1;
        get_rows(n, j, half, b0, b1);
#pragma unroll
        for (int m = 0; m < Config::kMTiles; m++) mma_m16n8k16(sum[m], w.a[m][half], b0, b1);
      }
      const float2 row_scale = kScalePerGroup ? get_scale(n, j) : make_float2(1.0f, 1.0f);
#pragma unroll
      for (int m = 0; m < Config::kMTiles; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          if constexpr (kScalePerGroup)
            acc[n][m][c] += sum[m][c] * (c % 2 ? row_scale.y : row_scale.x) * w_scale[m][c / 2];
          else block[n][m][c] += sum[m][c] * w_scale[m][c / 2];
        }
      }
    }
  }
  if constexpr (kScalePerGroup) return;
#pragma unroll
  for (int n = 0; n < kNTiles; n++) {
    const float2 row_scale = get_scale(n, 0);
#pragma unroll
    for (int m = 0; m < Config::kMTiles; m++) {
#pragma unroll
      for (int c = 0; c < 4; c++) acc[n][m][c] += block[n][m][c] * (c % 2 ? row_scale.y : row_scale.x);
    }
  }
}

}  // namespace mma_fused
