// sizes: constants that few_tokens/ and many_tokens/ share, and what their kernels assume of the layer's sizes.
#pragma once
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/pipeline/threads.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// ---- threads ----
constexpr int kConsumerWarpgroups = 2;  // the warpgroups that multiply; the producer warpgroup comes after them
constexpr int kConsumerThreads = kConsumerWarpgroups * kWarpgroupThreads;
constexpr int kProducerThreads = kWarpgroupThreads;
constexpr int kConsumerWarps = kConsumerThreads / kWarp;  // also the first producer warp
constexpr int kSmemLimit = 227 * 1024;  // bytes of shared memory that a CTA may have on sm_90
constexpr int kMmasPerStep = kBlockK / kMmaK;

// ---- devices ----
constexpr int kMinSms = 112;     // fewer SMs are refused
constexpr int kTargetSms = 132;  // of the H100 and H200 SXM, for which work is divided

// Up to so many experts that have rows (few_tokens: m_blocks) the L2 policy of weights is evict_first, else
// evict_unchanged: measured.
constexpr int kEvictFirstExperts = 8;

// Where a width is not a multiple of a pair of tiles, or K of a main loop's step, kernels compute up to the next
// multiple: TMA reads zeros beyond a matrix, and scratch has room for the additional results, which nobody reads.
constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

static_assert(kBlockK == kAtomRowBytes, "rows of the swizzle, scale blocks and K steps are all 128 bytes");
static_assert(kNumKBlocks1 <= 64, "a lane holds two of gemm1's weight scales or of a row's scales");
static_assert(kNumKBlocks2 <= 32, "a lane holds one of gemm2's scales of a weight block");
static_assert(kConsumerWarpgroups == 2,
              "tiles, named barriers and the split of K are made for two consumer warpgroups");

}  // namespace hopper_fused
