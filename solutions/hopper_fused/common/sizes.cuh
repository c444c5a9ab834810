// sizes: what follows from the definition's sizes, which packing writes to problem.cuh, and what the kernels assume of them.
#pragma once
#include "problem.cuh"

constexpr int kMaskWords = (kLocal + 31) / 32;  // 32-bit masks of the local experts
constexpr int kPaddedLocal = 32 * kMaskWords;        // arrays of local experts that whole warps walk

// What the kernels take for granted.
static_assert(kExperts % 128 == 0 && kExperts <= 512, "a lane of the routing warp has 4, 8, 12 or 16 experts");
static_assert(kLocal >= 1 && kLocal <= kExperts && kPaddedLocal <= 512, "an expert's number has 9 bits in a tile's word");
static_assert(kTopK >= 1 && kTopK <= 16 && kTopK <= kExperts, "a token's rows");
static_assert(kRoutingGroups == 1 || kExperts / kRoutingGroups % (kExperts / 32) == 0, "a group is a whole number of lanes");
static_assert(kRoutingGroups <= 32 && kKeptGroups <= kRoutingGroups, "");
static_assert(kHidden % 512 == 0, "gemm2's tiles are 256 columns, in pairs; a warp gathers a row by 512 bytes");
static_assert(kInter % 256 == 0, "gemm1's tiles are 128 columns of h, in pairs");
static_assert(kHidden / 128 <= 64 && kInter / 128 <= 16, "weight scales of a row of blocks lie in two, or half of one, of a warp's registers");
static_assert(kHidden / 128 % 4 == 0, "weight scales come four K steps at a time");
