// fused_smem: a CTA's shared memory in the one launch, and its barriers.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/pipeline/threads.cuh"
#include "hopper_fused/few_tokens/config.cuh"

namespace hopper_fused {

// Up to kMBlockRows rows of one expert.
struct MBlock {
  uint16_t expert, rows;  // rows without padding
  uint32_t first_row;     // a multiple of kAtomRows
  __device__ int atoms() const { return (rows + kAtomRows - 1) / kAtomRows; }
  // In gemm2: whether a stage holds a K block for each warpgroup, and the number of stages that the m_block takes.
  __device__ bool split_k() const { return rows <= Config::kGemm2SplitKRows; }
  __device__ int k_iters() const { return split_k() ? Config::kSplitKSteps2 : Config::kKSteps2; }
  __device__ bool bypasses_gather(int num_tokens) const { return rows == 1 && num_tokens <= Config::kBypassTokens; }
  // Offsets of K block k of the m_block in the arrays of FusedScratch, in elements. h has two terms, hi and lo.
  __device__ int x_offset(int k) const { return first_row * Config::kPaddedHidden + k * atoms() * kAtomBytes; }
  __device__ int x_scale_offset(int k) const { return first_row * Config::kKBlocks1 + k * atoms() * kAtomRows; }
  __device__ int h_offset(int k) const {
    return (first_row * Config::kPaddedIntermediate + k * atoms() * kAtomBytes) * 2;
  }
  __device__ int h_scale_offset(int k) const {
    return first_row * Config::kNumNBlocks + k * atoms() * kAtomRows * Config::kNBlocksPerKBlock;
  }
};

// Scales of x, for rows that bypass the gather: those of kTokens tokens, in the caller's layout.
template <int kTokens>
struct BypassScales {
  float scales[kTokens * kNumKBlocks1];
  __device__ float* x_scale() { return scales; }
};
template <>
struct BypassScales<0> {
  __device__ float* x_scale() { return reinterpret_cast<float*>(this); }  // nobody reads or writes there
};

// Routing weights: by row if the caller gives the experts (kTopKGiven). Else by token, where every CTA routes all
// tokens; with more tokens they are in scratch.
template <bool kByRow>
struct RoutingWeights {
  float weights[kByRow ? 1 : Config::kRouteAllTokens][kByRow ? Config::kMaxRows : kNumLocalExperts];
  __device__ float* token_weight(int token) { return weights[token]; }
  __device__ float* row_weight() { return weights[0]; }
};

// What gemm1 alone needs; gemm2's sums overwrite it.
struct Gemm1Smem : BypassScales<Config::kBypassTokens>, RoutingWeights<kTopKGiven> {};
static_assert(sizeof(Gemm1Smem) == Config::kGemm1SmemBytes, "the pool has room for it");

struct FusedSmem {
  // What is where in the pool. Gemm1Smem and the sums lie at its end.
  //   gemm1   stages | rows that bypass the gather, or rows quantised from bf16 | Gemm1Smem
  //   gemm2   stages | sums
  uint8_t pool[Config::kPoolBytes];  // 1024-byte aligned, as the swizzle requires
  union {
    float scales[Config::kStages][Config::kStageScales];    // of the stages' rows
    uint32_t rows_before[Config::kMaxTokens * kMaskWords];  // used by permute, before the first stage is filled
  };
  uint16_t token[Config::kMaxRows];  // of each row, or kNoToken
  // After permute [batch of 32 tokens][expert]: bit t says that the batch's token t has a row of the expert. Routing
  // writes it in the order of FusedScratch's mask, which permute transposes. With top-k given nothing is transposed.
  uint32_t mask[Config::kMaxTokens * kMaskWords];
  float amax[kConsumerWarpgroups][kWarpgroupWarps][Config::kMBlockRows];
  float split_k_sums[4][kWarpgroupThreads];  // of warpgroup 1, on their way to warpgroup 0
  MBlock m_block[Config::kMaxMBlocks];
  uint16_t m_block_of_atom[Config::kMaxRows / kAtomRows];
  int first_row[kPaddedLocalExperts];
  int num_m_blocks, num_rows;  // num_rows includes padding
  // mbarriers: see the table in fused_layer.cu
  Barrier full[Config::kStages], empty[Config::kStages];
  Barrier split_k_full, split_k_empty;
  Barrier sums_added[kConsumerWarpgroups];
  Barrier bypass_loaded, bypass_skipped;

  __device__ uint8_t* stage(int i) { return pool + i * Config::kStageBytes; }
  __device__ uint8_t* bypass_row(int nth_tile) {
    return pool + Config::kStagesBytes + nth_tile % Config::kBypassRows * kHidden;
  }
  __device__ uint8_t* quantised_row(int token) { return pool + Config::kStagesBytes + token * kHidden; }
  // [num_tokens][kSumPitch]: this CTA's output columns in fp32
  __device__ float* sums(int num_tokens) {
    return reinterpret_cast<float*>(pool + Config::kPoolBytes) - num_tokens * Config::kSumPitch;
  }
  __device__ Gemm1Smem& gemm1_smem() {
    return *reinterpret_cast<Gemm1Smem*>(pool + Config::kPoolBytes - sizeof(Gemm1Smem));
  }
};
static_assert(sizeof(FusedSmem) <= kSmemLimit, "a CTA has 227 KB of shared memory");

// ---- barriers ----

// Named barriers: see the table in fused_layer.cu.
using WarpgroupBarrier = NamedBarrier<1, kWarpgroupThreads>;  // and 2: one a warpgroup
using ConsumersBarrier = NamedBarrier<3, kConsumerThreads>;
using RowsReadBarrier = NamedBarrier<4, kConsumerThreads + kWarp>;
using GatheredBarrier = NamedBarrier<5, kConsumerThreads + kWarp>;
using PartialsBarrier = NamedBarrier<6, kConsumerThreads + kWarp>;
using AllPartialsBarrier = NamedBarrier<7, kConsumerThreads + kWarp>;
using HStoredBarrier = NamedBarrier<8, kWarpgroupThreads + kWarp>;  // and 9: one a warpgroup

}  // namespace hopper_fused
