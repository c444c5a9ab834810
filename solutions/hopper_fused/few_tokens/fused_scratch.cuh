// fused_scratch: the global memory that the CTAs of the one launch share.
#pragma once
#include <cstdint>

#include "hopper_fused/few_tokens/config.cuh"

namespace hopper_fused {

enum Counter { kRouted, kGathered, kFinished };  // CTAs that have done so

// Zero before and after each launch before `mask`.
struct alignas(16) RoutingScratch {
  unsigned counters[16];                              // by Counter; the others are not used
  unsigned n_blocks_stored[Config::kMaxMBlocks];      // of each m_block: n_blocks whose h is stored
  unsigned partials_stored[Config::kNumColumnTiles];  // where CTAs share a column tile: those whose Partials are there
  uint32_t mask[Config::kMaxTokens * kMaskWords];     // [batch of 32 tokens][word][token]; bit e: local expert e chosen
  float weight[Config::kMaxTokens][kNumLocalExperts];  // routing weight, where the bit is set
};

// Sums of the CTAs that share a column tile.
template <int kCtas>
struct Partials {
  float sums[kCtas][Config::kSumTokens][kHidden];
  __host__ __device__ float* partial(int nth_cta, int token) { return sums[nth_cta][token]; }
};
template <>
struct Partials<1> {  // nobody asks for them
  __host__ __device__ float* partial(int, int) { return nullptr; }
};

// Shared by the calls of a stream.
// A K block of an m_block's rows is contiguous in x, h and their scales, so that one bulk copy loads it.
struct FusedScratch : RoutingScratch, Partials<Config::kCtasPerColumnTile> {
  float x_scale[Config::kMaxRows * Config::kKBlocks1];    // m_block: [K block][row]
  float h_scale[Config::kMaxRows * Config::kNumNBlocks];  // m_block: [K block][row][n_block]; has the routing weight
  // m_block: [K block][atom][8 rows of 128 bytes, swizzled]
  alignas(1024) uint8_t x[Config::kMaxRows * Config::kPaddedHidden];
  // m_block: [K block][atom][hi, lo][8 rows of 128 bytes, swizzled]
  uint8_t h[Config::kMaxRows * Config::kPaddedIntermediate * 2];
};

}  // namespace hopper_fused
