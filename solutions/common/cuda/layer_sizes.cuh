// layer_sizes: what follows from problem.cuh for every solution, and what routing assumes of it.
#pragma once
#include "common/cuda/problem.cuh"

constexpr int kBlockK = 128;                           // a K block: 128 bytes of FP8 with one scale
constexpr int kNumKBlocks1 = kHidden / kBlockK;        // K blocks of gemm1, and scale blocks of a row of x
constexpr int kNumKBlocks2 = kIntermediate / kBlockK;  // K blocks of gemm2, and scale blocks of a row of W2
// The last experts of a rank's weights are the shared ones: every token has them, and the router knows nothing of them.
// Each rank has the whole of them, and outputs of ranks are added up: so a rank weighs them with its part of a whole.
constexpr int kNumRoutedLocalExperts = kNumLocalExperts - kNumSharedExperts;
constexpr float kSharedWeight = (float)kNumRoutedLocalExperts / kNumExperts;
// Local experts that a token has at most, and that it has on average times kNumExperts.
constexpr int kMaxTokenExperts =
    (kTopK < kNumRoutedLocalExperts ? kTopK : kNumRoutedLocalExperts) + kNumSharedExperts;
constexpr int kMeanTokenExpertsTimesE = kTopK * kNumRoutedLocalExperts + kNumSharedExperts * kNumExperts;
constexpr int kMaskWords = (kNumLocalExperts + 31) / 32;  // 32-bit words of a token's mask of local experts
constexpr int kPaddedLocalExperts = 32 * kMaskWords;      // local experts, rounded up to whole warps

static_assert(kHidden % kBlockK == 0 && kIntermediate % kBlockK == 0, "scale blocks are whole");
static_assert(kNumExperts >= 1 && kNumExperts <= 1024, "route: a lane has up to 32 experts");
static_assert(kNumExperts % 32 == 0 || kRoutingGroups == 1, "route: a group is whole lanes, and they are full");
static_assert(kNumRoutedLocalExperts >= 1 && kNumRoutedLocalExperts <= kNumExperts,
              "local experts are some of the experts");
static_assert(kNumSharedExperts >= 0 && kNumSharedExperts <= 32, "route: a lane has one shared expert at most");
static_assert(kTopK >= 1 && kTopK <= kNumExperts && kTopK + kNumSharedExperts <= 16, "a token's rows fit in registers");
static_assert(kRoutingGroups >= 1 && 32 % kRoutingGroups == 0, "route: a group is whole lanes");
static_assert(kKeptGroups >= 1 && kKeptGroups <= kRoutingGroups, "route: groups that are kept");
static_assert(!kRenorm || kRoutingGroups == 1, "route: renorm routing has no groups");
