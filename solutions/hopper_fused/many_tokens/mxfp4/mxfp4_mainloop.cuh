// mxfp4_mainloop: the main loop of a tile with MXFP4 weights, of both GEMMs. wgmma's M is weight rows: a warpgroup has
// 128, as two m64 one after the other, which it takes from shared memory to registers and turns into E4M3 there. wgmma's
// N is the tile's rows. While a warpgroup converts, scales and adds, the other's wgmmas can run.
//
// A weight row's reference (mxfp4_values.cuh) stays for all K blocks, so sums are scaled by x's or h's scales alone, and
// by it at the end. A K block with a group that is not in its row's window is unusual: it moves the reference, and the
// row's sums with it, by a power of two. Where a K block's own groups are further apart than the window, or a scale is
// NaN, it is wide: it is multiplied group by group, each product scaled in fp32. Whether a K block is so concerns all of
// a warpgroup, as wgmma does. Groups of zeros count as having no scale, unless it is NaN.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma_registers.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_gemm.cuh"

namespace hopper_fused {

// + warpgroup; the GEMMs' own are lower.
constexpr int kBarUnusual = 4;

// The lowest exponents of rows' windows. A reference is from 2^-40 to 2^8: sums, in units of it, stay far from infinity.
constexpr int kLeastLow = kE8M0Bias - 40 - kExponentsBelow, kMostLow = kE8M0Bias + 8 - kExponentsBelow;
constexpr int kHeadroom = 4;  // exponents of a new window above the largest
constexpr int kWideLow = kE8M0Bias - kExponentsBelow;  // of rows whose reference is 1

// A byte for each of a lane's rows: of the two m64 the lane's row and the one 8 below.
__device__ __forceinline__ int byte_of(uint32_t bytes, int m, int r) { return bytes >> 8 * (2 * m + r) & 255; }
__device__ __forceinline__ uint32_t byte_at(int value, int m, int r) { return (uint32_t)value << 8 * (2 * m + r); }

// The same in all lanes, and the compiler knows it.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(kFullWarp, v, 0); }

// ---- exponents ----

__device__ __forceinline__ int quad_max(int v) {
  v = max(v, __shfl_xor_sync(kFullWarp, v, 1));
  return max(v, __shfl_xor_sync(kFullWarp, v, 2));
}
__device__ __forceinline__ int quad_min(int v) {
  v = min(v, __shfl_xor_sync(kFullWarp, v, 1));
  return min(v, __shfl_xor_sync(kFullWarp, v, 2));
}
// For a warpgroup: whether a thread of it says so.
__device__ __forceinline__ bool any_of_warpgroup(bool mine, int warpgroup) {
  int any;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, q;\n}\n"
               : "=r"(any)
               : "r"((int)mine), "r"(kBarUnusual + warpgroup), "n"(kWarpgroupThreads)
               : "memory");
  return any;
}

// The window for a K block whose largest exponent is `most` and whose least is `least`.
__device__ __forceinline__ int window_of(int most, int least) {
  return min(most - (kExponents - 1 - kHeadroom), least);
}
// The window of a row from its first K block; what of that is not in it is unusual.
__device__ __forceinline__ int first_window(int exponent) {
  return min(max(window_of(quad_max(exponent), kE8M0NaN), kLeastLow), kMostLow);
}

// ---- one m64 ----

__device__ __forceinline__ bool has_values(const uint4& packed) {
  return ((packed.x | packed.y | packed.z | packed.w) & 0x77777777u) != 0;
}

// packed: a lane's group of a row, and of the row 8 below.
__device__ __forceinline__ void convert_m64(uint32_t (&a)[4][4], const uint4 (&packed)[2],
                                            const Magnitudes (&magnitudes)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const uint32_t words[4] = {packed[r].x, packed[r].y, packed[r].z, packed[r].w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint2 values = e4m3_of_eight(words[j], magnitudes[r]);
      a[j][r] = values.x;
      a[j][2 + r] = values.y;
    }
  }
}

// accum = the m64 times x or h, over a K block. a_tile: [part][rows], swizzled.
template <int N, int kParts>
__device__ __forceinline__ void issue_m64(float (&accum)[N / 2], uint32_t (&a)[4][4], const uint8_t* a_tile) {
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[j][i])::"memory");
  warpgroup_fence_operand(accum);
  warpgroup_arrive();
#pragma unroll
  for (int part = 0; part < kParts; part++) {
    const uint64_t desc = make_smem_desc(a_tile + part * Grouped::kATileBytes, kAtomBytes);
#pragma unroll
    for (int j = 0; j < 4; j++) WgmmaRegisters<N>::mma(accum, a[j], desc + kDescMmaK * j, part > 0 || j > 0);
  }
  warpgroup_commit_batch();
}

template <int N>
__device__ __forceinline__ void wait_m64(float (&accum)[N / 2]) {
  warpgroup_wait<0>();
  warpgroup_fence_operand(accum);
}

// sum += accum * scale of x or h.
template <int N>
__device__ __forceinline__ void add_m64(float (&sum)[N / 2], const float (&accum)[N / 2], const float* a_scale) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const float2 scale = *reinterpret_cast<const float2*>(a_scale + 8 * j + 2 * (threadIdx.x % kQuad));
    sum[4 * j + 0] += accum[4 * j + 0] * scale.x;
    sum[4 * j + 1] += accum[4 * j + 1] * scale.y;
    sum[4 * j + 2] += accum[4 * j + 2] * scale.x;
    sum[4 * j + 3] += accum[4 * j + 3] * scale.y;
  }
}

// sum *= 2^power, for row or row + 8.
template <int N>
__device__ __forceinline__ void scale_row(float (&sum)[N / 2], int row, float factor) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    sum[4 * j + 2 * row] *= factor;
    sum[4 * j + 2 * row + 1] *= factor;
  }
}

// ---- the loop ----

template <int N, int kParts, int kNumKBlocks, bool kFence, class Smem>
struct Mxfp4Mainloop {
  // N 128 leaves no registers for a second m64's weights.
  static constexpr bool kConvertsAhead = N <= 96;

  Smem& smem;
  typename Smem::Pipeline& pipe;
  float (&sum)[2][N / 2];
  const int warpgroup;
  int row;             // the lane's first, in the tile; others are 8, 64 and 72 below
  uint32_t windows;    // the lowest exponents of the rows' windows
  uint32_t places;     // in the windows, of the lane's groups in the K block that comes next
  int largest = 0;     // of the exponents, with two parts
  float bound = 0.0f;  // with two parts: of row threadIdx.x % 128 of h the sum of scales

  __device__ __forceinline__ Mxfp4Mainloop(Smem& smem_, typename Smem::Pipeline& pipe_, float (&sum_)[2][N / 2],
                                           int warpgroup_)
      : smem(smem_), pipe(pipe_), sum(sum_), warpgroup(warpgroup_) {
    const int warp = threadIdx.x / kWarp % kWarpgroupWarps;
    row = warpgroup * 128 + warp * kWarpRows + threadIdx.x % kWarp / kQuad;
  }

  __device__ __forceinline__ void load_packed(uint4 (&packed)[2], int stage, int m) const {
    const uint8_t* at = smem.w[stage] + (row + m * kMmaM) * kPackedRowBytes + threadIdx.x % kQuad * 16;
    packed[0] = *reinterpret_cast<const uint4*>(at);
    packed[1] = *reinterpret_cast<const uint4*>(at + 8 * kPackedRowBytes);
  }
  __device__ __forceinline__ void convert(uint32_t (&a)[4][4], int stage, int m) const {
    uint4 packed[2];
    load_packed(packed, stage, m);
    Magnitudes magnitudes[2];
#pragma unroll
    for (int r = 0; r < 2; r++) magnitudes[r] = smem.magnitudes[byte_of(places, m, r)];
    convert_m64(a, packed, magnitudes);
  }

  // Exponents of the lane's groups in K block k, the one of pipe's stage.
  __device__ __forceinline__ int exponent_of(int k, int m, int r) const {
    return smem.w_scale[pipe.scales.stage][(row + m * kMmaM + 8 * r) * Smem::kScaleBytes +
                                           k % Smem::kScaleBlocks * kGroupsPerKBlock + threadIdx.x % kQuad];
  }

  // Waits for K block k and finds the places of its exponents; of the first one, windows, too. Returns whether it is
  // unusual.
  template <bool kFirst>
  __device__ __forceinline__ bool wait_for(int k) {
    smem.full[pipe.stage].wait(pipe.phase);
    if constexpr (kFence) fence_proxy_async_shared();
    if constexpr (kFirst) windows = 0;
    unsigned furthest = 0;
    places = 0;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int exponent = exponent_of(k, m, r);
        if constexpr (kFirst) windows |= byte_at(first_window(exponent), m, r);
        const unsigned place = exponent - byte_of(windows, m, r);
        furthest = max(furthest, place);
        places |= byte_at(place, m, r);
        if (kParts == 2 && place < kExponents) largest = max(largest, exponent);
      }
    if constexpr (kParts == 2) bound += fabsf(smem.a_scale[pipe.stage][threadIdx.x % kWarpgroupThreads]);
    return any_of_warpgroup(furthest >= kExponents, warpgroup);
  }

  // For K block k, which is unusual: moves windows. Returns whether it is wide; then all references are 1.
  __device__ __forceinline__ bool move_windows(int k) {
    uint32_t moved = 0;
    bool wide = false;
    places = 0;
#pragma unroll
    for (int m = 0; m < 2; m++) {
      uint4 packed[2];
      load_packed(packed, pipe.stage, m);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int mine = exponent_of(k, m, r), before = byte_of(windows, m, r);
        const bool counts = has_values(packed[r]) || mine == kE8M0NaN;
        const int most = quad_max(counts ? mine : -1), least = quad_min(counts ? mine : kE8M0NaN);
        if (kParts == 2) largest = max(largest, most);
        int window = before;
        if (most >= 0 && (least < before || most >= before + kExponents)) {
          window = min(max(window_of(most, least), min(least, kLeastLow)), kMostLow);
          if (most - window >= kExponents || window < kLeastLow) wide = true, window = before;
        }
        scale_row<N>(sum[m], r, power_of_two(before - window));
        moved |= byte_at(window, m, r);
        places |= byte_at(min(max(mine - window, 0), kExponents - 1), m, r);  // of groups of zeros, any
      }
    }
    windows = moved;
    if (!any_of_warpgroup(wide, warpgroup)) return false;
    set_references(kWideLow);
    windows = 0x01010101u * kWideLow;
    return true;
  }

  // Scales the sums for windows that all begin at `low`.
  __device__ __forceinline__ void set_references(int low) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) scale_row<N>(sum[m], r, power_of_two(byte_of(windows, m, r) - low));
  }

  // A K block group by group. All references are 1.
  __device__ __forceinline__ void multiply_wide(float (&accum)[N / 2], int k) {
    const uint8_t* a_tile = smem.a[pipe.stage][0];
    const float* a_scale = smem.a_scale[pipe.stage] + 2 * (threadIdx.x % kQuad);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll 1
      for (int group = 0; group < kGroupsPerKBlock; group++) {
        uint4 packed[2];
        load_packed(packed, pipe.stage, m);
        if (threadIdx.x % kQuad != group) packed[0] = packed[1] = make_uint4(0, 0, 0, 0);
        const Magnitudes magnitudes[2] = {smem.magnitudes[kExponentsBelow], smem.magnitudes[kExponentsBelow]};
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++)
          factor[r] = e8m0_value(__shfl_sync(kFullWarp, exponent_of(k, m, r), group, kQuad));
        uint32_t a[4][4];
        convert_m64(a, packed, magnitudes);
        issue_m64<N, kParts>(accum, a, a_tile);
        wait_m64<N>(accum);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          const float2 scale = *reinterpret_cast<const float2*>(a_scale + 8 * j);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            sum[m][4 * j + 2 * r] += accum[4 * j + 2 * r] * factor[r] * scale.x;
            sum[m][4 * j + 2 * r + 1] += accum[4 * j + 2 * r + 1] * factor[r] * scale.y;
          }
        }
      }
  }

  // All K blocks; then sums are in units of 1. A K block's stage is released when the next one's first product has begun:
  // that overwrites accum, so all that was read with it has been used.
  __device__ __forceinline__ void run() {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int i = 0; i < N / 2; i++) sum[m][i] = 0.0f;
    float accum[N / 2];
    uint32_t a[1 + kConvertsAhead][4][4];
    bool unusual = wait_for<true>(0);
    int stage = uniform(pipe.stage), before = stage;  // of this K block and of the one before
    if (kConvertsAhead && !unusual) convert(a[0], stage, 0);
    const auto release_before = [&](int k) {
      if (k == 0) return;
      if constexpr (kParts == 2) cluster_consumer_release(smem, before, bound);
      else cluster_consumer_release(smem, before);
    };
    const auto next = [&](int k) {
      before = stage;
      pipe.advance(k);
      if (k + 1 == kNumKBlocks) return;
      unusual = wait_for<false>(k + 1);
      stage = uniform(pipe.stage);
      if (kConvertsAhead && !unusual) convert(a[0], stage, 0);
    };

    for (int k = 0; k < kNumKBlocks;) {
#pragma unroll 1
      for (; k < kNumKBlocks && !unusual; k++) {
        if constexpr (!kConvertsAhead) convert(a[0], stage, 0);
        issue_m64<N, kParts>(accum, a[0], smem.a[stage][0]);
        release_before(k);
        if constexpr (kConvertsAhead) convert(a[1], stage, 1);
        wait_m64<N>(accum);
        add_m64<N>(sum[0], accum, smem.a_scale[stage]);
        if constexpr (!kConvertsAhead) convert(a[0], stage, 1);
        issue_m64<N, kParts>(accum, a[kConvertsAhead], smem.a[stage][0]);
        next(k);
        wait_m64<N>(accum);
        add_m64<N>(sum[1], accum, smem.a_scale[before]);
      }
      if (k == kNumKBlocks) break;

      unusual = false;
      if (move_windows(k)) {
        multiply_wide(accum, k);
        release_before(k);
        next(k++);
      } else if (kConvertsAhead) {
        convert(a[0], stage, 0);
      }
    }
    cluster_consumer_release(smem, before, bound, sum[1]);
    set_references(kWideLow);
  }
};

}  // namespace hopper_fused
