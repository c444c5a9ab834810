// sizes: constants that both regimes derive from problem.cuh, and what the kernels assume of the problem.
#pragma once
#include <cstdint>

#include "problem.cuh"

// ---- threads ----
constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;  // member mask of the warp-wide instructions
constexpr int kWarpgroupThreads = 128;
constexpr int kWarpgroupWarps = kWarpgroupThreads / kWarp;
constexpr int kConsumerWarpgroups = 2;  // the warpgroups that multiply; the producer warpgroup comes after them
constexpr int kConsumerThreads = kConsumerWarpgroups * kWarpgroupThreads;
constexpr int kProducerThreads = kWarpgroupThreads;
constexpr int kConsumerWarps = kConsumerThreads / kWarp;  // also the first producer warp
constexpr int kSmemLimit = 227 * 1024;  // bytes of shared memory that a CTA may have on sm_90

// ---- K steps and layouts ----
constexpr int kBlockK = 128;                 // K of one step: a 128-byte row of FP8, the swizzle's width, one scale
constexpr int kNumKBlocks1 = kHidden / kBlockK;  // K steps of gemm1, and scale blocks of a row of x
constexpr int kNumKBlocks2 = kIntermediate / kBlockK;   // K steps of gemm2, and scale blocks of a row of W2
constexpr int kAtomRows = 8;                 // rows of a swizzle atom: 8 rows of 128 bytes
constexpr int kAtomBytes = kAtomRows * kBlockK;
constexpr int kMmaM = 64;  // wgmma's M
constexpr int kWarpRows = kMmaM / kWarpgroupWarps;  // accumulator rows of a warp
constexpr int kMmaK = 32;  // wgmma's K in FP8
constexpr int kMmasPerStep = kBlockK / kMmaK;

// ---- experts ----
constexpr int kMaskWords = (kNumLocalExperts + 31) / 32;   // 32-bit words of a token's mask of local experts
constexpr int kPaddedLocalExperts = 32 * kMaskWords;    // local experts, rounded up to whole warps

// ---- devices ----
constexpr int kMinSms = 112;     // fewer SMs are refused
constexpr int kTargetSms = 132;  // of the H100 and H200 SXM, for which work is divided

// With up to this many active experts their weights are loaded as evict_first, else as evict_unchanged: measured.
constexpr int kEvictFirstExperts = 8;

static_assert(kNumExperts % 128 == 0 && kNumExperts <= 512, "route: a lane has 4, 8, 12 or 16 experts");
static_assert(kNumLocalExperts >= 1 && kNumLocalExperts <= kNumExperts && kPaddedLocalExperts <= 512, "a tile's word has 9 bits for the expert");
static_assert(kTopK >= 1 && kTopK <= 16 && kTopK <= kNumExperts, "route and combine keep a token's rows in registers");
static_assert(kRoutingGroups >= 1 && kRoutingGroups <= 32 && 32 % kRoutingGroups == 0, "route: a group is whole lanes");
static_assert(kNumExperts % kRoutingGroups == 0, "route: groups are of one size");
static_assert(kRoutingGroups == 1 || kNumExperts / kRoutingGroups % (kNumExperts / 32) == 0, "route: a group is whole lanes");
static_assert(kKeptGroups >= 1 && kKeptGroups <= kRoutingGroups, "route: groups that are kept");
static_assert(!kRenorm || kRoutingGroups == 1, "route: renorm routing has no groups");
static_assert(kHidden % 512 == 0, "gemm2's tiles are 256 columns, in pairs; a warp gathers a row by 512 bytes");
static_assert(kIntermediate % 256 == 0, "gemm1's tiles are 128 columns of h, in pairs");
static_assert(kBlockK == 128, "rows of the swizzle, scale blocks and K steps are all 128 bytes");
static_assert(kNumKBlocks1 <= 64, "a lane holds two of gemm1's weight scales or of a row's scales");
static_assert(kNumKBlocks2 <= 16, "a warp holds gemm2's scales of two weight blocks, one scale a lane");
static_assert(kNumKBlocks1 % 4 == 0, "gemm1's weight scales come in 16-byte pieces of four K steps");
static_assert(kConsumerWarpgroups == 2,
              "tiles, named barriers and the split of K are made for two consumer warpgroups");
