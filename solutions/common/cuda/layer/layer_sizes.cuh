// layer_sizes: sizes that follow from problem.cuh, for every solution, and what routing assumes of them.
#pragma once
#include "common/cuda/layer/problem.cuh"

constexpr int kBlockK = 128;                           // a K block: 128 bytes of FP8 with one scale
constexpr int kNumKBlocks1 = kHidden / kBlockK;        // K blocks of gemm1, and scale blocks of a row of x
constexpr int kNumKBlocks2 = kIntermediate / kBlockK;  // K blocks of gemm2, and scale blocks of a row of W2
// The last experts of a rank's weights are the shared ones, of which the router knows nothing. All ranks hold them, and
// the ranks' outputs add up, so a token takes them on one of the ranks.
constexpr int kNumRoutedLocalExperts = kNumLocalExperts - kNumSharedExperts;
constexpr int kExpertRanks = kNumExperts / kNumRoutedLocalExperts;
// Experts that a token has on all ranks together, and the most that it has on one.
constexpr int kTokenExperts = kTopK + kNumSharedExperts;
constexpr int kMaxTokenExperts =
    (kTopK < kNumRoutedLocalExperts ? kTopK : kNumRoutedLocalExperts) + kNumSharedExperts;
constexpr int kMaskWords = (kNumLocalExperts + 31) / 32;  // 32-bit words of a token's mask of local experts
constexpr int kPaddedLocalExperts = 32 * kMaskWords;      // local experts, rounded up to whole warps

static_assert(kHidden % kBlockK == 0 && kIntermediate % kBlockK == 0, "scale blocks are whole");
static_assert(kNumExperts >= 1 && kNumExperts <= 1024, "route: a lane has up to 32 experts");
static_assert(kNumExperts % 32 == 0 || kRoutingGroups == 1, "route: a group is whole lanes, and they are full");
static_assert(kNumRoutedLocalExperts >= 1 && kNumRoutedLocalExperts <= kNumExperts,
              "local experts are some of the experts");
static_assert(kNumSharedExperts >= 0 && kNumSharedExperts <= 32, "route: a lane has one shared expert at most");
static_assert(kTopK >= 1 && kTopK <= kNumExperts && kTokenExperts <= 16, "a token's rows fit in registers");
static_assert(kRoutingGroups >= 1 && 32 % kRoutingGroups == 0, "route: a group is whole lanes");
static_assert(kKeptGroups >= 1 && kKeptGroups <= kRoutingGroups, "route: groups that are kept");
static_assert(!kRenorm || kRoutingGroups == 1, "route: renorm routing has no groups");
