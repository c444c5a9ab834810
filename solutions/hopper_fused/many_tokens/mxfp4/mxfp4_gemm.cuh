// mxfp4_gemm: what both grouped GEMMs with MXFP4 weights share: shared memory, and how weights' scales come into it.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/pipeline.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_values.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// ---- sizes ----

// A lane's sums are 96 registers, the products that are being made 48 or 112, weights 32.
constexpr int kMxfp4ProducerRegs = 40, kMxfp4ConsumerRegs = 232;
static_assert(registers_fit(kMxfp4ProducerRegs, kProducerThreads, kMxfp4ConsumerRegs, kConsumerThreads),
              "one CTA per SM");

// A tile is computed in two passes over K, each with half of its weight rows, 64 a warpgroup.
constexpr int kPasses = 2, kPassWeightRows = Grouped::kBlockN / kPasses;
static_assert(kPassWeightRows == kConsumerWarpgroups * kMmaM && kPassWeightRows == Grouped::kStageWeightRows,
              "a warpgroup has m64");
constexpr int kMostProductRows = 112;  // of x or h in one product, wgmma's N

constexpr int kPackedRowBytes = kBlockK / 2;  // of a weight row's K block
constexpr int kPackedTileBytes = kPassWeightRows * kPackedRowBytes;
constexpr int kPackedBoxBytes = kPackedTileBytes / Grouped::kClusterCtas;
constexpr int kGroupsPerKBlock = kBlockK / kScaleGroup;  // scales, a byte each, of a weight row's K block

// ---- shared memory ----

// kParts: of A, as in GemmSmem. kResultBytes: of what is stored at a time of a tile's result.
template <int kParts, int kNumKBlocks, int kResultBytes>
struct Mxfp4GemmSmem {
  // Scales come for so many K blocks at once, where a copy of theirs is aligned.
  static constexpr int kScaleBlocks = kNumKBlocks % 4 == 0 ? 4 : 1;
  static constexpr int kScaleBytes = kScaleBlocks * kGroupsPerKBlock;  // of a weight row
  static constexpr int kStageBytes = kParts * Grouped::kATileBytes + kPackedTileBytes + Grouped::kBlockM * 4 + 16;
  static constexpr int kMostScaleBytes = 3 * kPassWeightRows * 4 * kGroupsPerKBlock;
  static constexpr int kOtherBytes = kMostScaleBytes + (kParts == 2 ? 2048 : 512);
  static constexpr int kFittingStages = (kSmemLimit - kResultBytes - kOtherBytes) / kStageBytes;
  // Four, so that a stage is a compile-time constant, where scales come for four K blocks.
  static constexpr int kStages = kScaleBlocks == 4 && kFittingStages >= 4 ? 4 : kFittingStages;
  // A stage is filled when the K block kStages before is released, and with it all earlier ones.
  static constexpr int kScaleBuffers = kScaleBlocks == 4 ? 3 : kStages;
  static_assert(kScaleBlocks == 1 || kStages <= (kScaleBuffers - 1) * kScaleBlocks + 1,
                "a buffer's last K block is released");

  struct Pipeline : PipelineState<kStages> {
    PipelineState<kScaleBuffers> scales;
    // k: the K block that is over, of its pass.
    __device__ void advance(int k) {
      PipelineState<kStages>::advance();
      if ((k + 1) % kScaleBlocks == 0) scales.advance();
    }
  };

  alignas(1024) uint8_t a[kStages][kParts][Grouped::kATileBytes];  // as in GemmSmem, as is a_scale
  uint8_t d[kResultBytes];
  uint8_t w[kStages][kPackedTileBytes];
  uint8_t w_scale[kScaleBuffers][kPassWeightRows * kScaleBytes];
  float a_scale[kStages][Grouped::kBlockM];
  alignas(16) E4M3Table tables[kExponents];             // by exponent in the window
  float bound[kParts == 2 ? Grouped::kBlockM : 1];      // gemm2 with hi and lo: of each row
  int largest_exponent[kConsumerWarps];
  // mbarriers, see mxfp4_gemm1.cu and mxfp4_gemm2.cu
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[Grouped::kSchedulerStages];
  int tile_entry[Grouped::kSchedulerStages][2];
};

// For all threads, before init_gemm's barrier.
template <class Smem>
__device__ __forceinline__ void write_tables() {
  extern __shared__ __align__(1024) uint8_t gemm_smem[];
  Smem& smem = *reinterpret_cast<Smem*>(gemm_smem);
  if (threadIdx.x < kExponents) smem.tables[threadIdx.x] = e4m3_table(threadIdx.x - kExponentsBelow);
}

// Copies a weight row's scales of K block k and, with Smem::kScaleBlocks, those after it. scales: the row's, in memory.
template <class Smem>
__device__ __forceinline__ void cp_async_weight_scales(uint8_t* smem, const uint8_t* scales, int k) {
  if constexpr (Smem::kScaleBlocks == 4) cp_async_16(smem, scales + k * kGroupsPerKBlock);
  else cp_async_4(smem, scales + k * kGroupsPerKBlock);
}

// How a warpgroup has a tile's rows: kHalves products of kRows, one after the other.
template <int kRows_, int kHalves_>
struct TileRows {
  static constexpr int kRows = kRows_, kHalves = kHalves_;
};
// Calls f with the least of those that a tile's rows fit, as a type.
template <class F>
__device__ __forceinline__ void dispatch_mxfp4_rows(int m_rows, F f) {
  static_assert(Grouped::kBlockM == 192 && kMostProductRows == 112, "one case for each");
  if (m_rows <= 32) return f(TileRows<32, 1>());
  if (m_rows <= 64) return f(TileRows<64, 1>());
  if (m_rows <= 96) return f(TileRows<96, 1>());
  if (m_rows <= 128) return f(TileRows<64, 2>());
  if (m_rows <= 160) return f(TileRows<80, 2>());
  return f(TileRows<96, 2>());
}

}  // namespace hopper_fused
