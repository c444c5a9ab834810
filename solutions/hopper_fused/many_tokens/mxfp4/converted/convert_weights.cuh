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
#pragma unroll 8
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

// The upper half of a word, by an integer dot product: the pipe of lookups, which shifts to the right go to as well, is the
// one that converters wait for.
__device__ __forceinline__ uint32_t upper_half(uint32_t word) {
  constexpr uint32_t kUpper = 0x0100;  // weights 0 and 1 of the lower and the upper half
  uint32_t half;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(half) : "r"(word), "r"(kUpper), "r"(0));
  return half;
}

// As e4m3_of_four and e4m3_of_eight, in ten instructions for eight values. signs: the packed word with every bit turned
// round and the third of each code set: permute_bytes then gives 0x40 for a negative code, and its sign, 0, for another.
__device__ __forceinline__ uint32_t convert_four(uint32_t codes, uint32_t signs, const Magnitudes& magnitudes) {
  return permute_bytes(magnitudes.low, magnitudes.high, codes) + 2 * permute_bytes(0, 0x40404040u, signs);
}
__device__ __forceinline__ uint2 convert_eight(uint32_t packed, const Magnitudes& magnitudes) {
  const uint32_t codes = packed & 0x77777777u, signs = ~(packed & 0xbbbbbbbbu);
  return {convert_four(codes, signs, magnitudes), convert_four(upper_half(codes), upper_half(signs), magnitudes)};
}

// A row's K block, in registers.
struct PackedRow {
  uint4 groups[kGroupsPerKBlock];
  Magnitudes magnitudes[kGroupsPerKBlock];

  // exponents: of the four groups, low: the lowest of the row's window. packed: shared-memory address of the row's group
  // 0, swizzled. Returns the places, with kUnusual if a group with values is not in the window.
  __device__ __forceinline__ uint32_t load(uint32_t packed, const Magnitudes* of_place, uint32_t exponents, int low) {
    static_assert(kExponents <= 16 && kMostLow < 240, "a byte below the window leaves a high nibble");
    uint32_t places = exponents - low * 0x01010101u;
    if (places & 0xf0f0f0f0u) places = places_outside(exponents, low, packed);
#pragma unroll
    for (int q = 0; q < kGroupsPerKBlock; q++) {
      groups[q] = load_shared_16(packed ^ q * 16);
      magnitudes[q] = of_place[places >> 8 * q & 15];
    }
    return places;
  }

  // w: shared-memory address of the row's piece 0, swizzled.
  __device__ __forceinline__ void convert(uint32_t w) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      uint32_t first[kGroupsPerKBlock], second[kGroupsPerKBlock];
#pragma unroll
      for (int q = 0; q < kGroupsPerKBlock; q++) {
        const uint32_t word = j == 0 ? groups[q].x : j == 1 ? groups[q].y : j == 2 ? groups[q].z : groups[q].w;
        const uint2 values = convert_eight(word, magnitudes[q]);
        first[q] = values.x;
        second[q] = values.y;
      }
      store_shared_16(w ^ 2 * j * 16, first);
      store_shared_16(w ^ (2 * j + 1) * 16, second);
    }
  }
};

// A row's scales, K block by K block, read one ahead.
template <int kNumKBlocks>
struct RowScales {
  const uint32_t* at;
  uint32_t ahead;

  __device__ __forceinline__ explicit RowScales(const uint8_t* scales)
      : at(reinterpret_cast<const uint32_t*>(scales)), ahead(__ldg(at)) {}
  // Of K block k, which is the one behind that of the last call.
  __device__ __forceinline__ uint32_t next(int k) {
    const uint32_t now = ahead;
    if (k + 1 < kNumKBlocks) ahead = __ldg(++at);
    return now;
  }
};

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
    const int most[2] = {largest_byte<kRowScales>(first), largest_byte<kRowScales>(second)};
    const int low[2] = {window_below(most[0]), window_below(most[1])};
    uint32_t seen = max(most[0], most[1]) >= kMostLow + kExponents ? kUnusual : 0;
    const auto set_references = [&] {
      smem.reference[references.stage][row] = low[0];
      smem.reference[references.stage][kHalfTile + row] = low[1];
    };
    if (shared) seen |= convert_half(rank == 0 ? first : second, rank == 0 ? low[0] : low[1], set_references);
    else seen |= convert_both(first, second, low, set_references);
    references.advance();
    if (seen & kUnusual) *any_unusual = 1;
  }

  // This thread's row 0 in the stages that come next, and the swizzles' places of its group 0 and piece 0.
  __device__ __forceinline__ uint32_t packed_row() const {
    const int row = threadIdx.x % kConverterThreads;
    return smem_addr(smem.packed[packed.stage]) + row * kPackedRowBytes + row / 2 % 4 * 16;
  }
  __device__ __forceinline__ uint32_t w_row() const {
    const int row = threadIdx.x % kConverterThreads;
    return smem_addr(smem.w[pipe.stage]) + row * kAtomRowBytes + row % kAtomRows * 16;
  }

  // Of a shared tile the half that this CTA converts.
  template <class SetReferences>
  __device__ __forceinline__ uint32_t convert_half(const uint8_t* row_scales, int low, SetReferences set_references) {
    RowScales<kNumKBlocks> scales(row_scales);
    uint32_t seen = 0;
#pragma unroll 1
    for (int k = 0; k < kNumKBlocks; k++) {
      const uint32_t exponents = scales.next(k);
      smem.packed_full[packed.stage].wait(packed.phase);
      PackedRow packed_groups;
      seen |= packed_groups.load(packed_row(), smem.magnitudes, exponents, low);
      smem.empty[pipe.stage].wait(pipe.phase ^ 1);
      if (k == 0) set_references();
      packed_groups.convert(w_row() + rank * kHalfTileBytes);
      send_rows();
      pipe.advance();
      packed.advance();
    }
    return seen;
  }

  template <class SetReferences>
  __device__ __forceinline__ uint32_t convert_both(const uint8_t* first, const uint8_t* second, const int (&low)[2],
                                                   SetReferences set_references) {
    RowScales<kNumKBlocks> scales[2] = {RowScales<kNumKBlocks>(first), RowScales<kNumKBlocks>(second)};
    uint32_t seen = 0;
#pragma unroll 1
    for (int k = 0; k < kNumKBlocks; k++) {
      const uint32_t exponents[2] = {scales[0].next(k), scales[1].next(k)};
      smem.packed_full[packed.stage].wait(packed.phase);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        PackedRow packed_groups;
        seen |= packed_groups.load(packed_row() + half * kPackedBoxBytes, smem.magnitudes, exponents[half], low[half]);
        if (half == 0) smem.empty[pipe.stage].wait(pipe.phase ^ 1);
        if (half == 0 && k == 0) set_references();
        packed_groups.convert(w_row() + half * kHalfTileBytes);
      }
      arrive();
      pipe.advance();
      packed.advance();
    }
    return seen;
  }

  // A lane for each warp. What was stored has been read, so the packed stage is free, too.
  __device__ __forceinline__ void arrive() {
    fence_proxy_async_shared();  // for wgmma
    __syncwarp();
    if (threadIdx.x % kWarp != 0) return;
    smem.full[pipe.stage].arrive();
    smem.packed_empty[packed.stage].arrive();
  }

  // As arrive(), and copies this warp's rows to the other CTA, whose rows come in the same way.
  __device__ __forceinline__ void send_rows() {
    constexpr int kBytes = kHalfTileBytes / kConverterWarps;
    fence_proxy_async_shared();  // for wgmma and the copy
    __syncwarp();
    if (threadIdx.x % kWarp != 0) return;
    Barrier& full = smem.full[pipe.stage];
    full.arrive_and_expect(kBytes);
    const int warp = threadIdx.x % kConverterThreads / kWarp;
    bulk_copy_to_cta(smem.w[pipe.stage] + rank * kHalfTileBytes + warp * kBytes, kBytes, full, rank ^ 1);
    smem.packed_empty[packed.stage].arrive();
  }
};

}  // namespace hopper_fused
