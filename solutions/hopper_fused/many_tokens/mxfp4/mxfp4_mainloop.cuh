// mxfp4_mainloop: the main loop of a pass of a tile with MXFP4 weights, of both GEMMs. wgmma's M is weight rows: a
// warpgroup has 64, which it takes from shared memory to registers and turns into E4M3 there, once for all rows of the
// tile. wgmma's N is the tile's rows, or one half of them after the other. A K block of a product is four wgmmas. While
// they run, the next K block's weights are converted.
//
//   up to 112 rows   one product a K block, in two accumulators: K block k + 1 is multiplied while k is added
//   more rows        two products a K block, one half of the rows after the other, in one accumulator. While a
//                    warpgroup adds, the other's wgmmas run
//
// A weight row's reference (mxfp4_values.cuh) stays for as many K blocks as it can, so sums are scaled by x's or h's
// scales alone, and by it at the end. Where a group of K blocks whose scales came together is not in its row's window,
// the sums so far are put aside, in fp32 in local memory, and rows get new references. K blocks that no reference fits,
// as their own scales are too far apart or NaN, are multiplied 32 of K at a time, and each product is scaled in fp32.
// Which K blocks these are depends on the 64 weight rows of a warpgroup alone.
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
constexpr int kUnitLow = kE8M0Bias - kExponentsBelow;  // of a row whose reference is 1
constexpr int kHeadroom = 4;                           // exponents of a new window above the largest

constexpr uint32_t kEachByte = 0x01010101u, kHighBits = 0x80u * kEachByte;

// The same in all lanes, and the compiler knows it.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(kFullWarp, v, 0); }

// ---- exponents ----

__device__ __forceinline__ int quad_max(int v) {
  v = max(v, __shfl_xor_sync(kFullWarp, v, 1));
  return max(v, __shfl_xor_sync(kFullWarp, v, 2));
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

// The window of a row from the largest exponent of a K block.
__device__ __forceinline__ int window_of(int most) {
  return min(max(most - (kExponents - 1 - kHeadroom), kLeastLow), kMostLow);
}
// Whether one of four bytes, each an exponent less its window, is not in the window. Where an exponent is below its
// window the difference borrows from the next byte; but its own is 128 or more then, as no window begins above 128.
__device__ __forceinline__ bool beyond_window(uint32_t places) {
  static_assert(kMostLow <= 128 && kLeastLow >= 0, "a borrow is seen");
  return ((places + (128 - kExponents) * kEachByte | places) & kHighBits) != 0;
}
__device__ __forceinline__ int largest_byte(uint32_t bytes) {
  return max(max(bytes & 255, bytes >> 8 & 255), max(bytes >> 16 & 255, bytes >> 24));
}

// ---- one product ----

__device__ __forceinline__ bool has_values(const uint4& packed) {
  return ((packed.x | packed.y | packed.z | packed.w) & 0x77777777u) != 0;
}

// Sets what a lane has of one of its two rows: packed is its group, values go to each of the four wgmmas.
__device__ __forceinline__ void convert_row(uint32_t (&a)[kMmasPerStep][4], int r, const uint4& packed,
                                            const E4M3Table& table) {
  const uint32_t words[kMmasPerStep] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int j = 0; j < kMmasPerStep; j++) {
    const uint2 values = e4m3_of_eight(words[j], table);
    a[j][r] = values.x;
    a[j][2 + r] = values.y;
  }
}

// Begins accum = the weights times N rows of x or h, over a K block. rows: [part][rows], swizzled.
template <int N, int kParts>
__device__ __forceinline__ void issue_product(float (&accum)[N / 2], uint32_t (&a)[kMmasPerStep][4],
                                              const uint8_t* rows) {
#pragma unroll
  for (int j = 0; j < kMmasPerStep; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[j][i])::"memory");
  warpgroup_fence_operand(accum);
  warpgroup_arrive();
#pragma unroll
  for (int part = 0; part < kParts; part++) {
    const uint64_t desc = make_smem_desc(rows + part * Grouped::kATileBytes, kAtomBytes);
#pragma unroll
    for (int j = 0; j < kMmasPerStep; j++)
      WgmmaRegisters<N>::mma(accum, a[j], desc + kDescMmaK * j, part > 0 || j > 0);
  }
  warpgroup_commit_batch();
}

// Waits until all but kPending of the products are made; accum: of the last of them.
template <int N, int kPending>
__device__ __forceinline__ void wait_product(float (&accum)[N / 2]) {
  warpgroup_wait<kPending>();
  warpgroup_fence_operand(accum);
}

// The scales of x or h of a lane's rows.
template <int N>
__device__ __forceinline__ void load_scales(float2 (&scales)[N / 8], const float* a_scale) {
#pragma unroll
  for (int j = 0; j < N / 8; j++)
    scales[j] = *reinterpret_cast<const float2*>(a_scale + 8 * j + 2 * (threadIdx.x % kQuad));
}
// sum += accum * scale.
template <int N>
__device__ __forceinline__ void add_product(float (&sum)[N / 2], const float (&accum)[N / 2],
                                            const float2 (&scales)[N / 8]) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    sum[4 * j + 0] += accum[4 * j + 0] * scales[j].x;
    sum[4 * j + 1] += accum[4 * j + 1] * scales[j].y;
    sum[4 * j + 2] += accum[4 * j + 2] * scales[j].x;
    sum[4 * j + 3] += accum[4 * j + 3] * scales[j].y;
  }
}

// ---- the loop ----

template <class Rows, int kParts, int kNumKBlocks, bool kFence, class Smem>
struct Mxfp4Mainloop {
  static constexpr int N = Rows::kRows, kHalves = Rows::kHalves;
  static constexpr int kNone = -1;

  Smem& smem;
  typename Smem::Pipeline& pipe;
  float (&sum)[kHalves][N / 2];
  const int warpgroup;
  int row;                           // the lane's first, in the pass; the other is 8 below
  int stage, before;                 // of the K block that comes next, and of the one before
  int added = kNone;                 // stage of a K block that is in the sums and not released
  int low[2];                        // the lowest exponents of the rows' windows
  uint32_t places[2];                // in the windows, of the lane's groups: a byte for each K block from `stage` on
  volatile float aside[kHalves][N / 2];  // in local memory: sums of K blocks before, in units of 1
  bool has_aside = false;
  int largest = 0;                   // of the exponents, with two parts
  float bound[2] = {};               // with two parts: of rows threadIdx.x % 128 and 128 more of h the sum of scales

  __device__ __forceinline__ Mxfp4Mainloop(Smem& smem_, typename Smem::Pipeline& pipe_, float (&sum_)[kHalves][N / 2],
                                           int warpgroup_)
      : smem(smem_), pipe(pipe_), sum(sum_), warpgroup(warpgroup_) {
    const int warp = threadIdx.x / kWarp % kWarpgroupWarps;
    row = warpgroup * kMmaM + warp * kWarpRows + threadIdx.x % kWarp / kQuad;
  }

  // ---- weights ----

  __device__ __forceinline__ uint4 load_packed(int r) const {
    const uint8_t* at = smem.w[stage] + (row + 8 * r) * kPackedRowBytes + threadIdx.x % kQuad * 16;
    return *reinterpret_cast<const uint4*>(at);
  }
  // Converts the K block of `stage`.
  __device__ __forceinline__ void convert(uint32_t (&a)[kMmasPerStep][4]) const {
    uint4 packed[2];
    E4M3Table table[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      packed[r] = load_packed(r);
      table[r] = smem.tables[places[r] & 255];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) convert_row(a, r, packed[r], table[r]);
  }

  // Of the lane's groups of one of its rows: a byte for each of the K blocks that came together.
  __device__ __forceinline__ uint32_t exponents_of(int r) const {
    const uint8_t* at = smem.w_scale[pipe.scales.stage] + (row + 8 * r) * Smem::kScaleBytes;
    const int group = threadIdx.x % kQuad;
    if constexpr (Smem::kScaleBlocks == 1) return at[group] * kEachByte;
    const uint4 words = *reinterpret_cast<const uint4*>(at);
    const int lane_bytes = group * 0x11 + 0x40;  // the lane's group in each of two words
    const uint32_t first = permute_bytes(words.x, words.y, lane_bytes);
    return permute_bytes(first, permute_bytes(words.z, words.w, lane_bytes), 0x5410);
  }

  // For a K block whose scales came first: finds the places of its groups and of those that came with it. kNew: rows get
  // new windows. Returns whether all of the warpgroup's groups are in them.
  template <bool kNew>
  __device__ __forceinline__ bool find_places() {
    bool mine = false;
    int most = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint32_t exponents = exponents_of(r);
      if constexpr (kNew) low[r] = window_of(quad_max(exponents & 255));
      places[r] = exponents - low[r] * kEachByte;
      mine |= beyond_window(places[r]);
      if constexpr (kParts == 2) most = max(most, largest_byte(exponents));
    }
    if (kParts == 2 && !mine) largest = max(largest, most);
    return !any_of_warpgroup(mine, warpgroup);
  }

  // ---- stages ----

  __device__ __forceinline__ void wait_for() {
    smem.full[pipe.stage].wait(pipe.phase);
    if constexpr (kFence) fence_proxy_async_shared();
    if constexpr (kParts == 2) {
      const int thread = threadIdx.x % kWarpgroupThreads;
      bound[0] += fabsf(smem.a_scale[pipe.stage][thread]);
      if (thread < Grouped::kBlockM - kWarpgroupThreads)
        bound[1] += fabsf(smem.a_scale[pipe.stage][kWarpgroupThreads + thread]);
    }
  }
  // Goes on to the K block after k, if there is one.
  __device__ __forceinline__ void advance(int k) {
    before = stage;
    pipe.advance(k);
#pragma unroll
    for (int r = 0; r < 2; r++) places[r] >>= 8;
    if (k + 1 == kNumKBlocks) return;
    wait_for();
    stage = uniform(pipe.stage);
  }
  // Whether K block k is there and in the windows.
  __device__ __forceinline__ bool goes_on_to(int k) {
    return k < kNumKBlocks && (k % Smem::kScaleBlocks != 0 || find_places<false>());
  }
  // Releases the stage of the K block whose sums were added last. For after the next product has begun: it overwrites
  // an accumulator that those sums were made from, so all that was read with it has been used.
  __device__ __forceinline__ void release_added() {
    if (added == kNone) return;
    if constexpr (kParts == 2) cluster_consumer_release(smem, added, bound);
    else cluster_consumer_release(smem, added);
  }
  // The same with no product behind it.
  __device__ __forceinline__ void release_last() {
    cluster_consumer_release(smem, added, bound, sum);
    added = kNone;
  }

  // ---- products ----

  // sum = the product of K blocks k and following, in units of the references. Returns the first one that is not in the
  // windows.
  //
  // A branch is between each conversion and the wait behind it: without one ptxas moves the conversion behind the wait.
  __device__ __forceinline__ int multiply_halves(int k) {
    float accum[N / 2];
    uint32_t a[2][kMmasPerStep][4];
    convert(a[0]);
    bool goes_on;
#pragma unroll 1
    do {
      float2 scales[N / 8];
      issue_product<N, kParts>(accum, a[0], smem.a[stage][0]);
      release_added();
      advance(k++);
      goes_on = goes_on_to(k);
      if (goes_on) convert(a[1]);
      load_scales<N>(scales, smem.a_scale[before]);
      wait_product<N, 0>(accum);
      add_product<N>(sum[0], accum, scales);
      if constexpr (kHalves == 2) {
        issue_product<N, kParts>(accum, a[0], smem.a[before][0] + N * kBlockK);
        load_scales<N>(scales, smem.a_scale[before] + N);
        wait_product<N, 0>(accum);
        add_product<N>(sum[kHalves - 1], accum, scales);
      }
      added = before;
#pragma unroll
      for (int j = 0; j < kMmasPerStep; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[0][j][i] = a[1][j][i];
    } while (goes_on);
    return k;
  }

  // The same with one product a K block: while K block k is multiplied, k - 1 is added and k + 1 converted. Of four K
  // blocks that came together, so that each has its accumulator at compile time. No product goes on beyond them, as
  // ptxas would then wait for each at once.
  __device__ __forceinline__ int multiply_ahead(int k) {
    float accum[2][N / 2];
    uint32_t a[2][kMmasPerStep][4];
    int stage_of[2] = {kNone, kNone};  // of what each accumulator had last
    float2 scales[N / 8];
    convert(a[0]);
    bool goes_on;
#pragma unroll 1
    do {
#pragma unroll
      for (int i = 0; i < Smem::kScaleBlocks; i++) {
        const int now = i % 2, other = 1 - now;
        issue_product<N, kParts>(accum[now], a[now], smem.a[stage][0]);
        added = stage_of[now];
        release_added();
        stage_of[now] = stage;
        if (i > 0) {
          wait_product<N, 1>(accum[other]);
          load_scales<N>(scales, smem.a_scale[before]);
          add_product<N>(sum[0], accum[other], scales);
        }
        advance(k++);
        if (i + 1 < Smem::kScaleBlocks) convert(a[other]);
      }
      goes_on = goes_on_to(k);
      if (goes_on) convert(a[0]);
      wait_product<N, 0>(accum[1]);
      load_scales<N>(scales, smem.a_scale[before]);
      add_product<N>(sum[0], accum[1], scales);
    } while (goes_on);
    cluster_consumer_release(smem, stage_of[0], bound, sum);
    added = stage_of[1];
    return k;
  }

  __device__ __forceinline__ int multiply(int k) {
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int i = 0; i < N / 2; i++) sum[half][i] = 0.0f;
    if constexpr (kHalves == 1 && Smem::kScaleBlocks % 2 == 0) k = multiply_ahead(k);
    else k = multiply_halves(k);
    release_last();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float reference = power_of_two(low[r] - kUnitLow);
#pragma unroll
      for (int half = 0; half < kHalves; half++)
#pragma unroll
        for (int i = 2 * r; i < N / 2; i += 4) {
          sum[half][i] *= reference;
          sum[half][i + 1] *= reference;
        }
    }
    return k;
  }

  // ---- K blocks that no window holds ----

  // aside += sum.
  __device__ __forceinline__ void put_aside() {
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int i = 0; i < N / 2; i++) aside[half][i] = (has_aside ? aside[half][i] : 0.0f) + sum[half][i];
    has_aside = true;
  }

  // aside += the product of K block k, group by group.
  __device__ __forceinline__ void multiply_groups(int k) {
    float accum[N / 2];
    const float* a_scale = smem.a_scale[stage] + 2 * (threadIdx.x % kQuad);
#pragma unroll 1
    for (int group = 0; group < kGroupsPerKBlock; group++) {
      uint32_t a[kMmasPerStep][4];
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int exponent = exponents_of(r) >> 8 * (k % Smem::kScaleBlocks) & 255;
        uint4 packed = load_packed(r);
        factor[r] = e8m0_value(__shfl_sync(kFullWarp, exponent, group, kQuad));
        if (kParts == 2 && (has_values(packed) || exponent == kE8M0NaN)) largest = max(largest, exponent);
        if (threadIdx.x % kQuad != group) packed = make_uint4(0, 0, 0, 0);
        convert_row(a, r, packed, smem.tables[kExponentsBelow]);  // E2M1 as it is
      }
#pragma unroll
      for (int half = 0; half < kHalves; half++) {
        issue_product<N, kParts>(accum, a, smem.a[stage][0] + half * N * kBlockK);
        wait_product<N, 0>(accum);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
          aside[half][i] = aside[half][i] + accum[i] * factor[i / 2 % 2] * a_scale[half * N + i / 4 * 8 + i % 2];
      }
    }
  }

  // All K blocks; sums are in units of 1.
  __device__ __forceinline__ void run() {
    wait_for();
    stage = before = uniform(pipe.stage);
    for (int k = 0; k < kNumKBlocks;) {
      if (find_places<true>()) {
        k = multiply(k);
        if (k < kNumKBlocks || has_aside) put_aside();
        continue;
      }
      if (!has_aside) {
#pragma unroll
        for (int half = 0; half < kHalves; half++)
#pragma unroll
          for (int i = 0; i < N / 2; i++) sum[half][i] = 0.0f;
        put_aside();
      }
      do {
        multiply_groups(k);
        added = stage;
        advance(k++);
        release_last();
      } while (k < kNumKBlocks && k % Smem::kScaleBlocks != 0);
    }
    if (!has_aside) return;
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int i = 0; i < N / 2; i++) sum[half][i] = aside[half][i];
  }
};

}  // namespace hopper_fused
