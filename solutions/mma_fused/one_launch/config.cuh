// config: what is chosen for the single launch that computes the whole layer (up to kMaxTokens tokens), and what
// follows from it: tiles, threads, stages and lists of rows.
//
// row          a (token, local expert) pair. An expert's rows lie together, padded to multiples of 8
// m_block      up to kMBlockRows rows of one expert
// n_block      kNBlockColumns columns of h. gemm1 computes them from as many rows of each half of W13
// column tile  kColumnTile columns of the output, the N of gemm2's tiles: a weight tile's, or those of two
// K block      128 of K, the width of a scale's block
// weight tile  64 weight rows by one K block, a stage of the pipeline: rows of W13 for an n_block, or of W2 for a
//              column tile. 128 bytes of each row, or 64 with MXFP4 weights (mxfp4_tile.cuh)
//
// m_block and n_block are named after x . W^T, but kMmaM, kMmaN, kMTiles and kNTiles after the MMAs, which are swap-AB
// (tiled_mma.cuh): M counts weight rows, N an m_block's rows.
//
// To change a tile, edit the constants of Config that are plain numbers. Static asserts name most of what has to be
// changed with them; the TMA boxes (launch_layer.cu) are computed from them.
//
// build.py sets the three macros below for the GPU of the machine. Tests set them to run another architecture's paths
// on sm_90. The defaults are sm_90's.
#pragma once
#include <cstdint>
#include <type_traits>

#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/layer/weights.cuh"
#include "common/cuda/pipeline/threads.cuh"

#ifndef MMA_FUSED_SMEM_KIB
#define MMA_FUSED_SMEM_KIB 227  // shared memory that a CTA may have: 99, 163 or 227
#endif
#ifndef MMA_FUSED_TMA
#define MMA_FUSED_TMA 1  // weights by TMA (sm_90 and later), else by cp.async
#endif
#ifndef MMA_FUSED_CVT
#define MMA_FUSED_CVT 1  // E4M3 to fp16 by cvt (sm_89 and later), else by integer operations
#endif

namespace mma_fused {

struct Config {
  // ---- architecture ----
  static constexpr int kSmemLimit = MMA_FUSED_SMEM_KIB * 1024;
  static constexpr bool kTma = MMA_FUSED_TMA;
  static constexpr bool kCvt = MMA_FUSED_CVT;

  // ---- weight tiles ----
  static constexpr int kWeightTileRows = 64;
  static constexpr int kValuesPerByte = kMxfp4Weights ? 2 : 1;
  static constexpr int kTileRowBytes = kBlockK / kValuesPerByte;
  static constexpr int kWeightTileBytes = kWeightTileRows * kTileRowBytes;
  static constexpr int kMmaM = 16;                         // weight rows of an MMA
  static constexpr int kMmaN = 8;                          // rows of an MMA
  static constexpr int kMTiles = kWeightTileRows / kMmaM;  // MMAs for a weight tile's rows

  // ---- rows ----
  static constexpr int kMaxTokens = 256;  // of the one launch
  static constexpr int kMBlockRows = 16;  // measured: 24 is no faster; 8 takes 27% longer at T = 256; 32 spills sums
  static constexpr int kMaxTokenRows = kMaxTokenExperts;  // rows of a token
  static constexpr int kMaxPairs = kMaxTokens * kMaxTokenRows;                               // rows without padding
  static constexpr int kMaxActiveExperts = kNumLocalExperts < kMaxPairs ? kNumLocalExperts : kMaxPairs;
  static constexpr int kMaxMBlocks = kMaxActiveExperts + kMaxPairs / kMBlockRows;
  static constexpr int kMaxRows = kMaxPairs + kMaxActiveExperts * (kMmaN - 1);

  // ---- threads ----
  // Four warps instead of eight, and so half of the stages in all, where shared memory has no room for eight beside the
  // lists of rows.
  static constexpr int kWarps = kSmemLimit >= (kMaxRows > 7168 ? 227 : 163) * 1024 ? 8 : 4;
  static constexpr int kThreads = kWarps * kWarp;
  // Each warp has a pipeline of its own. Its stages hold 16 KiB of weights: 24 KiB were no faster with FP8 on an H200,
  // and up to 3% slower at 256 tokens. With MXFP4, eight warps and 163 KiB, the scales take the room of one stage.
  static constexpr int kStages = !kMxfp4Weights ? 2 : kWarps == 8 && kSmemLimit < 227 * 1024 ? 3 : 4;
  static constexpr int kSignalWarp = kWarps - 1;  // counts, for other CTAs, the n_blocks of h that warps 0 to 3 stored

  // ---- tiles ----
  // Too many experts for what routing keeps in shared memory before the stages are used.
  static constexpr bool kManyExperts = kWarps == 4 && kPaddedLocalExperts > 512;
  // Up to so many tokens every CTA routes all of them, without a grid barrier. With 4 instead of 12, T = 7 took 2%
  // more.
  static constexpr int kRouteAllTokens = kManyExperts ? 4 : 12;
  static constexpr int kMaxNTiles = kMBlockRows / kMmaN;      // MMAs for an m_block's rows, at most
  static constexpr int kNBlockColumns = kWeightTileRows / 2;  // half of a weight tile's rows are up, half gate
  // n_blocks of an m_block. h has a scale for each row and n_block.
  static constexpr int kNumNBlocks = kIntermediate / kNBlockColumns;
  static constexpr int kNBlocksPerKBlock = kBlockK / kNBlockColumns;  // n_blocks of h in a K block of gemm2
  // gemm2's K is divided among the warps. Where half of them are enough, a K block each, the other half takes the same
  // K blocks for the next 64 columns.
  static constexpr int kColumnHalves = kWarps == 2 * kMTiles && 2 * kNumKBlocks2 <= kWarps ? 2 : 1;
  static constexpr int kGemm2Warps = kWarps / kColumnHalves;  // warps that divide gemm2's K
  static constexpr int kColumnTile = kWeightTileRows * kColumnHalves;
  static constexpr int kNumColumnTiles = kHidden / kColumnTile;
  static constexpr int kMaxSharingCtas = 8;  // CTAs that share a column tile, at most
  // A tile of gemm1 can be split along K between two CTAs if each warp has at least two K blocks of it. The CTA of the
  // second part waits for the first part, which is therefore never the larger one.
  static constexpr int kSplitKBlocks = kNumKBlocks1 / kWarps / 2;  // of a warp, in the first part
  static constexpr int kMaxSplitTiles = 128;
  // Whether a warp has at most one K block of each tile of gemm2. Such a tile takes no longer than a load: what it
  // loads has to be on its way while the tile before is computed.
  static constexpr bool kShortTiles = kNumKBlocks2 <= kGemm2Warps;

  // The most tokens that are copied to shared memory: where there is room, and a load from L2 would take as long as a
  // tile.
  static constexpr int kStagedTokens = kShortTiles && kSmemLimit >= 227 * 1024 && kHidden <= 2048 ? 16 : 0;
  static constexpr int kStagedPitch = kHidden + 16;  // bytes of a token; the 16 spread neighbours over the banks

  // ---- lists of rows ----
  static constexpr int kRouteAllPairs = kRouteAllTokens * kMaxTokenRows;
  static constexpr int kRouteAllExperts = kNumLocalExperts < kRouteAllPairs ? kNumLocalExperts : kRouteAllPairs;
  static constexpr int kRouteAllRows = kRouteAllPairs + kRouteAllExperts * (kMmaN - 1);
  // The lists' types: 8 bits where wider ones would not fit into shared memory.
  using TokenIndex = std::conditional_t<(kMaxRows > 4800), uint8_t, uint16_t>;
  using RowsBefore = std::conditional_t<kManyExperts, uint8_t, uint32_t>;
};

static_assert(Config::kMBlockRows == 2 * Config::kMmaN,
              "gemm1_swiglu() and gemm2_combine() have a case each for one and two N tiles");
static_assert(Config::kRouteAllTokens <= 32, "one batch of masks, where every CTA routes all tokens");
static_assert(Config::kMTiles == 4 && Config::kMTiles <= Config::kWarps,
              "warps 0 to 3 have the epilogues, 16 weight rows each");
static_assert(Config::kNBlocksPerKBlock == 4, "lane t of a quad has the scale of n_block t of a K block");
static_assert(kBlockK % Config::kNBlockColumns == 0 && kBlockK % Config::kColumnTile == 0,
              "a weight tile has one scale, or one for each half of W13");
static_assert(Config::kMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(Config::kMaxTokens <= 256, "a row's token, and an expert's rows in earlier batches, may have 8 bits");
static_assert(Config::kMaxRows < 1 << 16, "h's rows and scratch are sized for these");

}  // namespace mma_fused
