// convert_weights: packed weights from shared memory as E4M3 into shared memory, in wgmma's swizzled layout and MXFP4's
// order of K (k_order.cuh).
//
// A thread of the converter warpgroup has weight row `thread` of a tile, and row 128 + thread. Where both CTAs of a
// cluster have the same weights, each converts 128 rows, and copies them to the other one.
//
// A row's window, mxfp4_values.cuh, ends at the largest exponent of all of its K, and is its tile's for all K blocks.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "common/cuda/ptx/smem_addr.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/converted_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_mainloop.cuh"

namespace hopper_fused {

constexpr int kHalfTile = Grouped::kBlockN / 2;  // weight rows
constexpr int kHalfTileBytes = kHalfTile * kBlockK;
static_assert(kConverterThreads == kHalfTile, "a thread has a row of each half");

// Copies `bytes` bytes, a multiple of 16, of shared memory to the same address in CTA `rank` of the cluster; they count
// at the barrier there.
__device__ __forceinline__ void bulk_copy_to_cta(void* smem, int bytes, uint64_t* bar, int rank) {
  asm volatile(
      "{\n.reg .b32 to, there;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 there, %2, %3;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [there];\n}\n" ::"r"(
          smem_addr(smem)),
      "r"(bytes), "r"(smem_addr(bar)), "r"(rank)
      : "memory");
}

using ConvertersBarrier = NamedBarrier<6, kConverterThreads>;

// ---- exponents ----

// The largest of `bytes` bytes.
template <int kBytes>
__device__ __forceinline__ int largest_byte(const uint8_t* bytes) {
  uint32_t high = 0, low = 0;  // the larger ones of bytes 1 and 3, and of 0 and 2, above other bytes
  const auto add = [&](uint32_t word) {
    high = __vmaxu2(high, word);
    low = __vmaxu2(low, word << 8);
  };
  if constexpr (kBytes % 16 == 0) {
#pragma unroll 4
    for (int i = 0; i < kBytes / 16; i++) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(bytes) + i);
      add(v.x), add(v.y), add(v.z), add(v.w);
    }
  } else {
#pragma unroll 4
    for (int i = 0; i < kBytes / 4; i++) add(__ldg(reinterpret_cast<const uint32_t*>(bytes) + i));
  }
  const uint32_t both = __vmaxu2(high, low);
  return max(both >> 24, both >> 8 & 255);
}

// The lowest exponent of a window that ends at `most`, if it can.
__device__ __forceinline__ int window_below(int most) {
  return min(max(most - (kExponents - 1), kLeastLow), kMostLow);
}

// ---- one row ----

__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ void store_shared_16(uint32_t at, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// The places of four groups in a window, a byte each; those of groups that are not in it are 0, and kUnusual is set if
// one of these has values, or is NaN.
constexpr uint32_t kUnusual = 1u << 31;
__device__ __forceinline__ uint32_t places_outside(uint32_t exponents, int low, uint32_t packed) {
  uint32_t places = 0;
#pragma unroll 1
  for (int q = 0; q < kGroupsPerKBlock; q++) {
    const int exponent = exponents >> 8 * q & 255;
    const unsigned place = exponent - low;
    if (place < kExponents) {
      places |= place << 8 * q;
      continue;
    }
    if (exponent == kE8M0NaN || has_values(load_shared_16(packed ^ q * 16))) places |= kUnusual;
  }
  return places;
}

// A row's K block. exponents: of its four groups, low: the lowest of its window. packed, w: shared-memory addresses of
// the row's group 0 and of its piece 0, swizzled. Returns the places, with kUnusual if a
// group with values is not in the window.
__device__ __forceinline__ uint32_t convert_row(uint32_t w, uint32_t packed, const Magnitudes* magnitudes,
                                                uint32_t exponents, int low) {
  static_assert(kExponents <= 16 && kMostLow < 240, "a byte below the window leaves a high nibble");
  uint32_t places = exponents - low * 0x01010101u;
  if (places & 0xf0f0f0f0u) places = places_outside(exponents, low, packed);
  uint4 groups[kGroupsPerKBlock];
  Magnitudes of_group[kGroupsPerKBlock];
#pragma unroll
  for (int q = 0; q < kGroupsPerKBlock; q++) {
    groups[q] = load_shared_16(packed ^ q * 16);
    of_group[q] = magnitudes[places >> 8 * q & 15];
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t first[kGroupsPerKBlock], second[kGroupsPerKBlock];
#pragma unroll
    for (int q = 0; q < kGroupsPerKBlock; q++) {
      const uint32_t word = j == 0 ? groups[q].x : j == 1 ? groups[q].y : j == 2 ? groups[q].z : groups[q].w;
      const uint2 values = e4m3_of_eight(word, of_group[q]);
      first[q] = values.x;
      second[q] = values.y;
    }
    store_shared_16(w ^ 2 * j * 16, first);
    store_shared_16(w ^ (2 * j + 1) * 16, second);
  }
  return places;
}

// ---- tiles ----

// Of all tiles of a CTA, by the converter warpgroup.
template <int kNumKBlocks, class Smem>
struct WeightConverter {
  static constexpr int kRowScales = kNumKBlocks * kGroupsPerKBlock;

  Smem& smem;
  unsigned* any_unusual;
  const int rank;
  typename Smem::Pipeline pipe;
  typename Smem::PackedPipeline packed;
  PipelineState<Smem::kReferences> references;

  __device__ __forceinline__ WeightConverter(Smem& smem_, unsigned* any_unusual_, int rank_)
      : smem(smem_), any_unusual(any_unusual_), rank(rank_) {}

  // first, second: scales of the thread's rows. shared: by both CTAs.
  __device__ __forceinline__ void convert_tile(const uint8_t* first, const uint8_t* second, bool shared) {
    const int row = threadIdx.x % kConverterThreads;
    const uint32_t packed_at = row * kPackedRowBytes + row / 2 % 4 * 16;  // the 64-byte swizzle's place of group 0
    const uint32_t w_at = row * kAtomRowBytes + row % kAtomRows * 16;     // the 128-byte swizzle's of piece 0
    const int most[2] = {largest_byte<kRowScales>(first), largest_byte<kRowScales>(second)};
    const int low[2] = {window_below(most[0]), window_below(most[1])};
    uint32_t seen = max(most[0], most[1]) >= kMostLow + kExponents ? kUnusual : 0;
    // of the K block that comes next; of a shared tile, of this CTA's half
    const uint32_t* scales[2] = {reinterpret_cast<const uint32_t*>(shared && rank == 1 ? second : first),
                                 reinterpret_cast<const uint32_t*>(second)};
    const int low0 = shared && rank == 1 ? low[1] : low[0];
    uint32_t next[2] = {__ldg(scales[0]), shared ? 0 : __ldg(scales[1])};
#pragma unroll 1
    for (int k = 0; k < kNumKBlocks; k++) {
      const uint32_t exponents[2] = {next[0], next[1]};
      if (k + 1 < kNumKBlocks) {
        next[0] = __ldg(scales[0] + k + 1);
        if (!shared) next[1] = __ldg(scales[1] + k + 1);
      }
      smem.packed_full[packed.stage].wait(packed.phase);
      smem.empty[pipe.stage].wait(pipe.phase ^ 1);
      if (k == 0) {
        smem.reference[references.stage][row] = low[0];
        smem.reference[references.stage][kHalfTile + row] = low[1];
      }
      const uint32_t from = smem_addr(smem.packed[packed.stage]) + packed_at;
      const uint32_t to = smem_addr(smem.w[pipe.stage]) + w_at;
      seen |= convert_row(to + (shared ? rank * kHalfTileBytes : 0), from, smem.magnitudes, exponents[0], low0);
      if (!shared)
        seen |= convert_row(to + kHalfTileBytes, from + kPackedBoxBytes, smem.magnitudes, exponents[1], low[1]);
      if (shared) send_half();
      else arrive();
      pipe.advance();
      packed.advance();
    }
    references.advance();
    if (seen & kUnusual) *any_unusual = 1;
  }

  // A lane for each warp. What was stored has been read, so the packed stage is free, too.
  __device__ __forceinline__ void arrive() {
    fence_proxy_async_shared();  // for wgmma
    __syncwarp();
    if (threadIdx.x % kWarp != 0) return;
    smem.full[pipe.stage].arrive();
    smem.packed_empty[packed.stage].arrive();
  }

  // As arrive(), and copies this CTA's half of the stage to the other CTA, whose half comes in the same way.
  __device__ __forceinline__ void send_half() {
    Barrier& full = smem.full[pipe.stage];
    fence_proxy_async_shared();  // for wgmma and the copy
    ConvertersBarrier::sync();
    if (threadIdx.x % kWarp != 0) return;
    if (threadIdx.x % kConverterThreads == 0) {
      uint8_t* half = smem.w[pipe.stage] + rank * kHalfTileBytes;
      full.arrive_and_expect(kHalfTileBytes);
      bulk_copy_to_cta(half, kHalfTileBytes, full, rank ^ 1);
    } else {
      full.arrive();
    }
    smem.packed_empty[packed.stage].arrive();
  }
};

}  // namespace hopper_fused
