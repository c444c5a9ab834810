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

// The scales of x or h of a lane's rows, of 8 kFirst to 8 kFirst + 8 kCount.
template <int kCount>
__device__ __forceinline__ void load_scales(float2 (&scales)[kCount], const float* a_scale, int first = 0) {
#pragma unroll
  for (int j = 0; j < kCount; j++)
    scales[j] = *reinterpret_cast<const float2*>(a_scale + 8 * (first + j) + 2 * (threadIdx.x % kQuad));
}
// sum += accum * scale for those rows.
template <int N, int kCount>
__device__ __forceinline__ void add_rows_of(float (&sum)[N / 2], const float (&accum)[N / 2],
                                            const float2 (&scales)[kCount], int first) {
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    const int i = 4 * (first + j);
    sum[i + 0] += accum[i + 0] * scales[j].x;
    sum[i + 1] += accum[i + 1] * scales[j].y;
    sum[i + 2] += accum[i + 2] * scales[j].x;
    sum[i + 3] += accum[i + 3] * scales[j].y;
  }
}
// Waits for all products; sum += accum * scale of x or h. Half of the scales are loaded before, the others meanwhile.
template <int N>
__device__ __forceinline__ void wait_and_add(float (&sum)[N / 2], float (&accum)[N / 2], const float* a_scale) {
  float2 scales[N / 16];
  load_scales(scales, a_scale);
  wait_product<N, 0>(accum);
  float2 others[N / 16];
  load_scales(others, a_scale, N / 16);
  add_rows_of<N>(sum, accum, scales, 0);
  add_rows_of<N>(sum, accum, others, N / 16);
}

// ---- the loop ----

template <class Rows, int kParts, int kNumKBlocks, bool kFence, class Smem>
struct Mxfp4Mainloop {
  static constexpr int N = Rows::kRows, kHalves = Rows::kHalves;
  static constexpr int kNone = -1;

  // Whether a K block's stage is known at compile time: that of the first of four K blocks whose scales came together is
  // 0. Then pipe.stage stays 0.
  static constexpr bool kUnrolled = Smem::kStages == 4 && Smem::kScaleBlocks == 4;

  Smem& smem;
  typename Smem::Pipeline& pipe;
  float (&sum)[kHalves][N / 2];
  const int warpgroup;
  int row;              // the lane's first, in the pass; the other is 8 below
  int stage, before;    // of the K block that comes next, and of the one before; not with kUnrolled
  int added = kNone;    // stage of a K block that is in the sums and not released
  int low[2];           // the lowest exponents of the rows' windows
  uint32_t places[2];   // in the windows, of the lane's groups: a byte for each K block from `stage` on
  int largest = 0;      // of the exponents, with two parts
  float bound[2] = {};  // with two parts: of rows threadIdx.x % 128 and 128 more of h the sum of scales

  __device__ __forceinline__ Mxfp4Mainloop(Smem& smem_, typename Smem::Pipeline& pipe_, float (&sum_)[kHalves][N / 2],
                                           int warpgroup_)
      : smem(smem_), pipe(pipe_), sum(sum_), warpgroup(warpgroup_) {
    const int warp = threadIdx.x / kWarp % kWarpgroupWarps;
    row = warpgroup * kMmaM + warp * kWarpRows + threadIdx.x % kWarp / kQuad;
  }

  // ---- weights ----

  __device__ __forceinline__ uint4 load_packed(int at_stage, int r) const {
    const uint8_t* at = smem.w[at_stage] + (row + 8 * r) * kPackedRowBytes + threadIdx.x % kQuad * 16;
    return *reinterpret_cast<const uint4*>(at);
  }
  // Converts one of the lane's rows of the K block of a stage, number i of those in `places`.
  __device__ __forceinline__ void convert(uint32_t (&a)[kMmasPerStep][4], int at_stage, int r, int i) const {
    convert_row(a, r, load_packed(at_stage, r), smem.tables[places[r] >> 8 * i & 255]);
  }
  // The same behind a branch that is always taken. What is converted between a product's begin and its end stays there:
  // without a branch ptxas moves it behind the wait.
  __device__ __forceinline__ void convert_now(uint32_t (&a)[kMmasPerStep][4], int at_stage, int r, int i) const {
    int opaque;
    asm volatile("mov.b32 %0, %1;" : "=r"(opaque) : "r"(warpgroup));
    if (opaque < kConsumerWarpgroups) convert(a, at_stage, r, i);
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
  //
  // All of these add the product of K blocks k and following to sums in units of the references, and return the first
  // one that is not in the windows.

  __device__ __forceinline__ int multiply_rolled(int k) {
    float accum[N / 2];
    uint32_t a[2][kMmasPerStep][4];
    for (int r = 0; r < 2; r++) convert(a[0], stage, r, 0);
    bool goes_on;
#pragma unroll 1
    do {
      issue_product<N, kParts>(accum, a[0], smem.a[stage][0]);
      release_added();
      advance(k++);
      goes_on = goes_on_to(k);
      if (goes_on)
        for (int r = 0; r < 2; r++) convert(a[1], stage, r, 0);
      wait_and_add<N>(sum[0], accum, smem.a_scale[before]);
      if constexpr (kHalves == 2) {
        issue_product<N, kParts>(accum, a[0], smem.a[before][0] + N * kBlockK);
        wait_and_add<N>(sum[kHalves - 1], accum, smem.a_scale[before] + N);
      }
      added = before;
#pragma unroll
      for (int j = 0; j < kMmasPerStep; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[0][j][i] = a[1][j][i];
    } while (goes_on);
    release_last();
    return k;
  }

  // Two products a K block. Of the next K block's weights one row is converted beside each.
  __device__ __forceinline__ int multiply_halves(int k) {
    float accum[N / 2];
    uint32_t a[2][kMmasPerStep][4];
    for (int r = 0; r < 2; r++) convert(a[0], 0, r, 0);
    bool goes_on = true;
    int first = 1;
#pragma unroll 1
    do {
      asm volatile("" : "+r"(first));  // not known, or the compiler takes the first K blocks out of the loop
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int next = (i + 1) % 4;
          issue_product<N, kParts>(accum, a[i % 2], smem.a[i][0]);
        if (i > 0 || !first) cluster_consumer_release(smem, (i + 3) % 4);
        if (i == 3) pipe.phase ^= 1, pipe.scales.advance();
        if (i < 3 || k + 4 < kNumKBlocks) {
          smem.full[next].wait(pipe.phase);
          if constexpr (kFence) fence_proxy_async_shared();
        }
        if (i == 3) goes_on = k + 4 < kNumKBlocks && find_places<false>();
        if (i < 3 || goes_on) convert_now(a[(i + 1) % 2], next, 0, next);
        wait_and_add<N>(sum[0], accum, smem.a_scale[i]);
        issue_product<N, kParts>(accum, a[i % 2], smem.a[i][0] + N * kBlockK);
        if (i < 3 || goes_on) convert_now(a[(i + 1) % 2], next, 1, next);
        wait_and_add<N>(sum[kHalves - 1], accum, smem.a_scale[i] + N);
      }
      k += 4;
      first = 0;
    } while (goes_on);
    cluster_consumer_release(smem, 3, sum);
    return k;
  }

  // One product a K block: while K block k is multiplied, k - 1 is added and k + 1 converted. No product goes on beyond
  // four K blocks, as ptxas would then wait for each at once.
  __device__ __forceinline__ int multiply_ahead(int k) {
    float accum[2][N / 2];
    uint32_t a[2][kMmasPerStep][4];
    float2 scales[N / 8];
    for (int r = 0; r < 2; r++) convert(a[0], 0, r, 0);
    bool goes_on = true;
    int first = 1;
#pragma unroll 1
    do {
      asm volatile("" : "+r"(first));  // not known, or the compiler takes the first K blocks out of the loop
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int now = i % 2, other = 1 - now, next = (i + 1) % 4;
        issue_product<N, kParts>(accum[now], a[now], smem.a[i][0]);
        // The K block whose accumulator this overwrites.
        if (i > 1 || !first) cluster_consumer_release(smem, (i + 2) % 4);
        if (i > 0) {
          wait_product<N, 1>(accum[other]);
          load_scales(scales, smem.a_scale[i - 1]);
          add_rows_of<N>(sum[0], accum[other], scales, 0);
        }
        if (i == 3) pipe.phase ^= 1, pipe.scales.advance();
        if (i < 3 || k + 4 < kNumKBlocks) {
          smem.full[next].wait(pipe.phase);
          if constexpr (kFence) fence_proxy_async_shared();
        }
        if (i == 3) goes_on = k + 4 < kNumKBlocks && find_places<false>();
        if (i < 3 || goes_on)
          for (int r = 0; r < 2; r++) convert(a[other], next, r, next);
      }
      wait_product<N, 0>(accum[1]);
      load_scales(scales, smem.a_scale[3]);
      add_rows_of<N>(sum[0], accum[1], scales, 0);
      k += 4;
      first = 0;
    } while (goes_on);
    cluster_consumer_release(smem, 2, sum);
    cluster_consumer_release(smem, 3, sum);
    return k;
  }

  // Scales sums from units of 1 to those of the references, or back.
  template <int kSign>
  __device__ __forceinline__ void scale_sums() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float factor = power_of_two(kSign * (low[r] - kUnitLow));
#pragma unroll
      for (int half = 0; half < kHalves; half++)
#pragma unroll
        for (int i = 2 * r; i < N / 2; i += 4) {
          sum[half][i] *= factor;
          sum[half][i + 1] *= factor;
        }
    }
  }
  __device__ __forceinline__ int multiply(int k) {
    scale_sums<-1>();
    if constexpr (!kUnrolled) k = multiply_rolled(k);
    else if constexpr (kHalves == 1) k = multiply_ahead(k);
    else k = multiply_halves(k);
    scale_sums<1>();
    return k;
  }

  // ---- K blocks that no window holds ----

  // sum += the product of K block k, the one of a stage, group by group.
  __device__ __forceinline__ void multiply_groups(int k, int at_stage) {
    float accum[N / 2];
    const float* a_scale = smem.a_scale[at_stage] + 2 * (threadIdx.x % kQuad);
#pragma unroll 1
    for (int group = 0; group < kGroupsPerKBlock; group++) {
      uint32_t a[kMmasPerStep][4];
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int exponent = exponents_of(r) >> 8 * (k % Smem::kScaleBlocks) & 255;
        uint4 packed = load_packed(at_stage, r);
        factor[r] = e8m0_value(__shfl_sync(kFullWarp, exponent, group, kQuad));
        if (kParts == 2 && (has_values(packed) || exponent == kE8M0NaN)) largest = max(largest, exponent);
        if (threadIdx.x % kQuad != group) packed = make_uint4(0, 0, 0, 0);
        convert_row(a, r, packed, smem.tables[kExponentsBelow]);  // E2M1 as it is
      }
#pragma unroll
      for (int half = 0; half < kHalves; half++) {
        issue_product<N, kParts>(accum, a, smem.a[at_stage][0] + half * N * kBlockK);
        wait_product<N, 0>(accum);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
          sum[half][i] += accum[i] * factor[i / 2 % 2] * a_scale[half * N + i / 4 * 8 + i % 2];
      }
    }
  }
  // The same for a K block and those whose scales came with it. Returns the K block behind them.
  __device__ __forceinline__ int multiply_groups_of_four(int k) {
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
      multiply_groups(k + i, i);
      cluster_consumer_release(smem, i, sum);
      if (i == 3) pipe.phase ^= 1, pipe.scales.advance();
      if (k + i + 1 < kNumKBlocks) {
        smem.full[(i + 1) % 4].wait(pipe.phase);
        if constexpr (kFence) fence_proxy_async_shared();
      }
    }
    return k + 4;
  }
  __device__ __forceinline__ int multiply_groups_rolled(int k) {
    do {
      multiply_groups(k, stage);
      added = stage;
      advance(k++);
      release_last();
    } while (k < kNumKBlocks && k % Smem::kScaleBlocks != 0);
    return k;
  }

  // All K blocks; sums are in units of 1.
  __device__ __forceinline__ void run() {
#pragma unroll
    for (int half = 0; half < kHalves; half++)
#pragma unroll
      for (int i = 0; i < N / 2; i++) sum[half][i] = 0.0f;
    wait_for();
    stage = before = uniform(pipe.stage);
    for (int k = 0; k < kNumKBlocks;) {
      if (find_places<true>()) k = multiply(k);
      else if constexpr (kUnrolled) k = multiply_groups_of_four(k);
      else k = multiply_groups_rolled(k);
    }
  }
};

}  // namespace hopper_fused
