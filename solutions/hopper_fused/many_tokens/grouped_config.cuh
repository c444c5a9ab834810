// grouped_config: what is chosen for the kernels for many tokens, and what follows from it: tiles, clusters, threads,
// registers, and how shared memory is divided into stages.
//
// row         a (token, local expert) pair. An expert's rows lie together, padded to a multiple of kRowAlign
// m_block     up to kBlockM rows of one expert
// n_block     kBlockN weight rows of one expert: in gemm1 those of kBlockK columns of h, up and gate; in gemm2 as many
//             columns of y
// K block     128 of K, with one scale
// work tile   an m_block by an n_block, over all of K (tile_scheduler.cuh)
//
// To change a tile, edit the constants that are plain numbers; the static asserts say what has to be changed with them.
// The tile's size is also in kNormalN and the halves (normal_mainloop.cuh), sum[2] (swap_ab_mainloop.cuh),
// dispatch_swap_ab_rows, and both epilogues.
#pragma once
#include <cstdint>

#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/layer/weights.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

struct Grouped {
  // Whether H is large beside I, as on tensor-parallel ranks: then it takes long to move a row, and little time to
  // compute it.
  static constexpr bool kLongRows = !kMxfp4Weights && kHidden >= 8 * kIntermediate;
  // Whether moving rows is then most of the time, so that other kernels are faster. Measured with I of 256 and 384; a
  // wider I keeps the kernels that it was measured with.
  static constexpr bool kNarrow = kLongRows && kIntermediate <= 384;

  // ---- tiles ----
  static constexpr int kRowAlign = 16;    // wgmma's N of swap-AB tiles is a multiple of this
  static constexpr int kBlockM = 128;     // rows of a tile at most
  static constexpr int kSwapAbRows = 64;  // rows of a swap-AB tile at most
  static constexpr int kBlockN = 256;     // weight rows of a tile
  // n_blocks of an expert in gemm1: one for each K block of h, rounded up to pairs.
  static constexpr int kNumNBlocks1 = round_up(kNumKBlocks2, 2);
  // Whether gemm1 leaves out the n_block that pads I: a cluster's two tiles may then be of two experts, see
  // write_gemm1_entries.
  static constexpr bool kOddNBlocks = kLongRows && kNumNBlocks1 != kNumKBlocks2;
  static constexpr int kPaddedIntermediate = kNumNBlocks1 * kBlockK;  // columns of h in scratch

  // ---- clusters and threads ----
  static constexpr int kClusterCtas = 2;
  static constexpr int kClusterM = kClusterCtas * kBlockM;       // rows of two tiles that share weights
  static constexpr uint16_t kAllCtas = (1 << kClusterCtas) - 1;  // multicast mask: every CTA of the cluster
  static constexpr int kThreads = kConsumerThreads + kProducerThreads;
  // A normal tile's sums take 128 of the consumers' registers, its accumulator 64; the producers keep addresses only.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;

  // ---- shared memory of the GEMMs ----
  static constexpr int kWTileBytes = kBlockN * kBlockK;  // of a stage
  // A TMA box is the half of a tile's weights that a CTA multicasts: groups of 8 rows of each half of W13, rows of W2.
  static constexpr int kW1BoxGroups = kBlockN / (kClusterCtas * 2 * kAtomRows);
  static constexpr int kW2BoxRows = kBlockN / kClusterCtas;
  static constexpr int kWBoxBytes = kWTileBytes / kClusterCtas;
  static constexpr int kATileBytes = kBlockM * kBlockK;  // of a stage, a part of A
  static constexpr int kResultBytes = 2 * kATileBytes;   // of the tile's result before its store
  // K blocks whose weight scales gemm1 copies at once: 16 bytes, where they are aligned.
  static constexpr int kWScaleBlocks = kNumKBlocks1 % 4 == 0 ? 4 : 1;
  // Entries of gemm2's queue in shared memory; see DynamicTileScheduler::publish.
  static constexpr int kSchedulerStages = kNumKBlocks2 > 1 ? 4 : 8;

  // The bytes of a stage, and how many stages fit. parts: the FP8 terms that A is a sum of, 1 or 2.
  static constexpr int stage_bytes(int parts) {
    const int scales = (kBlockM + 2 * kWScaleBlocks) * (int)sizeof(float);
    const int barriers = 2 * sizeof(uint64_t);
    return kWTileBytes + parts * kATileBytes + scales + barriers;
  }
  static constexpr int stages(int parts) {
    const int scheduler = kSchedulerStages * (sizeof(uint64_t) + sizeof(uint2));
    return (kSmemLimit - kResultBytes - scheduler) / stage_bytes(parts);
  }

  // ---- column passes: gemm2 and combine may run once for each part of y's columns, see grouped_layer.cuh ----
  static constexpr int kMaxColumnPasses = 8;  // passes that there are counters for
  static constexpr int kColumnPasses = 2;     // passes above kOnePassTokens tokens (launch_layer.cu)

  // ---- route_permute ----
  static constexpr int kRouteThreads = 1024;
  static constexpr int kRouteWarps = kRouteThreads / kWarp;
  static constexpr int kSumParts = kRouteThreads / kPaddedLocalExperts;  // threads that add up an expert's counts
  // Up to so many tokens one CTA routes all of them, a warp each.
  static constexpr int kOneCtaTokens = 32;
  // The fewest tokens that a CTA gets: with many experts it is faster to add up the counts of fewer CTAs than to route
  // fewer tokens in each. Both numbers were found by measuring.
  static constexpr int kMinTokensPerCta = kMaskWords <= 2 ? 1 : 8;
  // Dynamic shared memory: two words per local expert for each batch of 32 tokens, and one more. The static arrays take
  // up to 21 KB of the 227, or 31 with more than 512 local experts.
  static constexpr int kRouteSmemBytes = (kPaddedLocalExperts <= 512 ? 208 : 200) * 1024;
  static constexpr int kFittingRouteBatches = kRouteSmemBytes / 8 / kPaddedLocalExperts - 1;
  // The most batches of 32 tokens that a CTA routes. 2^17 tokens need 37 on kMinSms SMs. Where fewer fit,
  // launch_layer.cu allows fewer tokens.
  static constexpr int kMaxRouteBatches = kFittingRouteBatches < 64 ? kFittingRouteBatches : 64;
  static constexpr int route_smem_bytes(int batches) { return (2 * batches + 1) * kPaddedLocalExperts * 4; }

  // ---- combine ----
  static constexpr int kRowVectors = kHidden / 8;  // 16-byte vectors of a row of y
  // In one column pass a row is then, for most models, two or four vectors for each thread.
  static constexpr int kCombineThreads = kRowVectors % 896 == 0   ? 224
                                         : kRowVectors % 512 == 0 ? 256
                                         : kRowVectors % 384 == 0 ? 192
                                                                  : 128;
  // Whether a token has more than three rows on average.
  static constexpr bool kManyRows = kTokenExperts * kNumRoutedLocalExperts > 3 * kNumExperts;
  // Rows of a token whose loads are in flight together; most tokens have no more than these.
  static constexpr int kCombineRowsAtOnce = kManyRows ? 4 : 2;
  static constexpr int kCombineCtas = (kManyRows ? 1024 : 1792) / kCombineThreads;  // CTAs on an SM at once
  // The grid has so many times the CTAs that run at once, so that another starts where one ends early.
  static constexpr int kCombineWaves = 4;
  // CTAs that share a token where tokens are few.
  static constexpr int kTokenCtas = (kRowVectors + kCombineThreads - 1) / kCombineThreads;
};

// Columns of y in each of so many column passes: whole pairs of n_blocks.
constexpr int y_columns_of(int passes) {
  return round_up(kHidden, passes * 2 * Grouped::kBlockN) / passes;
}

static_assert(Grouped::kClusterCtas == 2, "tiles come in pairs");
static_assert(Grouped::kBlockM == kConsumerWarpgroups * kMmaM, "a warpgroup has m64 of a normal tile's rows");
static_assert(Grouped::kBlockN == kConsumerWarpgroups * 2 * kMmaM,
              "a warpgroup has two m64 of a swap-AB tile's weight rows");
static_assert(Grouped::kBlockN / 2 == kBlockK, "a gemm1 tile's up, and its gate, are one scale block");
static_assert(registers_fit(Grouped::kProducerRegisters, kProducerThreads, Grouped::kConsumerRegisters,
                            kConsumerThreads),
              "one CTA per SM");
static_assert(Grouped::stages(2) >= 2, "a stage is filled while another is read");
static_assert(Grouped::kColumnPasses <= Grouped::kMaxColumnPasses, "gemm2 counts each pass's tiles");
static_assert(kPaddedLocalExperts <= Grouped::kRouteThreads, "one thread per local expert");
static_assert(Grouped::kMaxRouteBatches >= 1 &&
                  Grouped::route_smem_bytes(Grouped::kMaxRouteBatches) <= Grouped::kRouteSmemBytes,
              "some tokens fit");

}  // namespace hopper_fused
