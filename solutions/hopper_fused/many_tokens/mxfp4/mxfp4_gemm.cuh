// mxfp4_gemm: what grouped GEMMs with MXFP4 weights share: shared memory, weights' scales and how they come into it.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/pipeline.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_values.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// ---- sizes ----

// A lane's sums of two m64n128 are 128 registers, the product that is being made 64, its weights 16.
constexpr int kMxfp4ProducerRegs = 40, kMxfp4ConsumerRegs = 232;
static_assert(registers_fit(kMxfp4ProducerRegs, kProducerThreads, kMxfp4ConsumerRegs, kConsumerThreads),
              "one CTA per SM");

constexpr int kPackedRowBytes = kBlockK / 2;  // of a weight row's K block
constexpr int kPackedTileBytes = Grouped::kBlockN * kPackedRowBytes;
constexpr int kPackedBoxBytes = kPackedTileBytes / Grouped::kClusterCtas;
constexpr int kGroupsPerKBlock = kBlockK / kScaleGroup;  // scales, a byte each, of a weight row's K block

// ---- shared memory ----

// kParts: of A, as in GemmSmem.
template <int kParts, int kNumKBlocks>
struct Mxfp4GemmSmem {
  static constexpr int kStages = kParts == 1 ? 5 : 3;  // as many as fit
  // Scales come for so many K blocks at once, where a copy of theirs is aligned.
  static constexpr int kScaleBlocks = kNumKBlocks % 4 == 0 ? 4 : 1;
  // A stage is filled when the K block kStages before is released, and with it all earlier ones. So of four K blocks'
  // scales, two buffers serve up to five stages.
  static constexpr int kScaleBuffers = kScaleBlocks == 4 ? 2 : kStages;
  static constexpr int kScaleBytes = kScaleBlocks * kGroupsPerKBlock;  // of a weight row
  static_assert(kStages <= kScaleBlocks + 1 || kScaleBlocks == 1, "a buffer's last K block is released");

  struct Pipeline : PipelineState<kStages> {
    PipelineState<kScaleBuffers> scales;
    // k: the K block that is over, of its tile.
    __device__ void advance(int k) {
      PipelineState<kStages>::advance();
      if ((k + 1) % kScaleBlocks == 0) scales.advance();
    }
  };

  alignas(1024) uint8_t a[kStages][kParts][Grouped::kATileBytes];  // as in GemmSmem, as are d and a_scale
  uint8_t d[2][Grouped::kATileBytes];
  uint8_t w[kStages][kPackedTileBytes];
  uint8_t w_scale[kScaleBuffers][Grouped::kBlockN * kScaleBytes];
  float a_scale[kStages][Grouped::kBlockM];
  Magnitudes magnitudes[kExponents];  // by exponent in the window
  float bound[2][Grouped::kBlockM];            // gemm2 with hi and lo: [warpgroup][row]
  int largest_exponent[kConsumerWarps];
  // mbarriers, see mxfp4_gemm1.cu and mxfp4_gemm2.cu
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[Grouped::kSchedulerStages];
  int tile_entry[Grouped::kSchedulerStages][2];
};

// For all threads, before init_gemm's barrier.
template <class Smem>
__device__ __forceinline__ void write_magnitudes() {
  extern __shared__ __align__(1024) uint8_t gemm_smem[];
  Smem& smem = *reinterpret_cast<Smem*>(gemm_smem);
  if (threadIdx.x < kExponents) smem.magnitudes[threadIdx.x] = magnitudes_of(threadIdx.x - kExponentsBelow);
}

// Copies a weight row's scales of K block k and, with Smem::kScaleBlocks, those after it. scales: the row's, in memory.
template <class Smem>
__device__ __forceinline__ void cp_async_weight_scales(uint8_t* smem, const uint8_t* scales, int k) {
  if constexpr (Smem::kScaleBlocks == 4) cp_async_16(smem, scales + k * kGroupsPerKBlock);
  else cp_async_4(smem, scales + k * kGroupsPerKBlock);
}

// ---- scales of weights in memory ----

// The E8M0 scales of weight row `row` of gemm1's tile, for the first half of its rows. Those of the row that is half of
// a tile below are kSecondRowScales behind. Beyond I weights are zeros, and their scales any.
constexpr int kW13RowScales = kHidden / kScaleGroup, kW2RowScales = kIntermediate / kScaleGroup;
constexpr size_t kSecondRowScales = (size_t)Grouped::kW1BoxGroups * kAtomRows * kW13RowScales;
__device__ __forceinline__ const uint8_t* w13_row_scales(const GroupedArgs& args, const WorkTile& tile, int row) {
  const int n_block = Grouped::kNumNBlocks1 == kNumKBlocks2 ? tile.n_block : min(tile.n_block, kNumKBlocks2 - 1);
  const int group = row / (2 * kAtomRows), half = row / kAtomRows % 2, in_group = row % kAtomRows;
  const int w_row = (tile.expert * 2 + half) * kIntermediate + n_block * kBlockK + group * kAtomRows + in_group;
  return reinterpret_cast<const uint8_t*>(args.w1_scale) + (size_t)w_row * kW13RowScales;
}

// Those of row `row` of W2, counted over all experts. Beyond H they are any.
__device__ __forceinline__ const uint8_t* w2_row_scales(const GroupedArgs& args, int row) {
  const int w_row = kPadsColumns ? min(row, kNumLocalExperts * kHidden - 1) : row;
  return reinterpret_cast<const uint8_t*>(args.w2_scale) + (size_t)w_row * kW2RowScales;
}

// ---- tiles ----

// Calls f with a tile's rows, rounded up to an N of wgmma, as a type.
template <class F>
__device__ __forceinline__ void dispatch_mxfp4_rows(int m_rows, F f) {
  static_assert(Grouped::kBlockM == 128, "one case for each N");
  if (m_rows <= 32) return f(RowCount<32>());
  if (m_rows <= 64) return f(RowCount<64>());
  if (m_rows <= 96) return f(RowCount<96>());
  return f(RowCount<128>());
}

}  // namespace hopper_fused
