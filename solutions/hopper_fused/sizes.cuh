// sizes: constants of few_tokens/ and many_tokens/, and what their kernels assume of the problem.
#pragma once
#include "layer_sizes.cuh"
#include "threads.cuh"
#include "wgmma.cuh"

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

// With up to this many active experts (few_tokens: m_blocks) weights are evict_first, else evict_unchanged: measured.
constexpr int kEvictFirstExperts = 8;

static_assert(kPaddedLocalExperts <= 512, "many_tokens: a tile's word has 9 bits for the expert");
static_assert(kHidden % 512 == 0, "many_tokens: gemm2's tiles are 256 columns, in pairs");
static_assert(kIntermediate % 256 == 0, "many_tokens: gemm1's tiles are 128 columns of h, in pairs");
static_assert(kBlockK == kAtomRowBytes, "rows of the swizzle, scale blocks and K steps are all 128 bytes");
static_assert(kNumKBlocks1 <= 64, "a lane holds two of gemm1's weight scales or of a row's scales");
static_assert(kNumKBlocks2 <= 16, "many_tokens: a warp holds gemm2's scales of two weight blocks");
static_assert(kNumKBlocks1 % 4 == 0, "many_tokens: gemm1's weight scales come four at a time");
static_assert(kConsumerWarpgroups == 2,
              "tiles, named barriers and the split of K are made for two consumer warpgroups");
