// config: what is chosen for the one launch, and what follows from it: tiles, threads, stages and lists of rows.
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
// To change a tile: the constants of Config that are numbers. Static asserts name most of what has to follow; the TMA
// boxes (launch_layer.cu) do by themselves.
//
// build.py sets the macros for the GPU that is here; tests set them to run another architecture's paths on sm_90.
// Without any, sm_90's.
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
  static constexpr int kMBlockRows = 16;  // measured: 24 were no faster, with 8 T = 256 took 27% more; 32 spill sums
  static constexpr int kMaxTokenRows = kMaxTokenExperts;  // of a token
  static constexpr int kMaxPairs = kMaxTokens * kMaxTokenRows;                               // rows without padding
  static constexpr int kMaxActiveExperts = kNumLocalExperts < kMaxPairs ? kNumLocalExperts : kMaxPairs;
  static constexpr int kMaxMBlocks = kMaxActiveExperts + kMaxPairs / kMBlockRows;
  static constexpr int kMaxRows = kMaxPairs + kMaxActiveExperts * (kMmaN - 1);

  // ---- threads ----
  // Half as many warps, of half the stages, where the lists of rows need the room
  static constexpr int kWarps = kSmemLimit >= (kMaxRows > 7168 ? 227 : 163) * 1024 ? 8 : 4;
  static constexpr int kThreads = kWarps * kWarp;
  // Of each warp, 16 KiB of weights: with FP8 24 were no faster on an H200, at 256 tokens up to 3% slower. MXFP4's
  // scales take the room of one where there are 163 KiB for eight warps.
  static constexpr int kStages = !kMxfp4Weights ? 2 : kWarps == 8 && kSmemLimit < 227 * 1024 ? 3 : 4;
  static constexpr int kSignalWarp = kWarps - 1;  // counts what warps 0 to 3 have stored

  // ---- tiles ----
  // Up to kRouteAllTokens every CTA routes all tokens: no grid barrier. With 4 instead of 12, T = 7 took 2% more.
  static constexpr bool kManyExperts = kWarps == 4 && kPaddedLocalExperts > 512;  // for what routing has before stages
  static constexpr int kRouteAllTokens = kManyExperts ? 4 : 12;
  static constexpr int kMaxNTiles = kMBlockRows / kMmaN;      // MMAs for an m_block's rows, at most
  static constexpr int kNBlockColumns = kWeightTileRows / 2;  // half of a weight tile's rows are up, half gate
  static constexpr int kNumNBlocks =
      kIntermediate / kNBlockColumns;  // of an m_block; h has a scale for each row and one
  static constexpr int kNBlocksPerKBlock = kBlockK / kNBlockColumns;  // n_blocks of h in a K block of gemm2
  // Where half of the warps have a K block of gemm2 each, the other half has the same ones for the next 64 columns.
  static constexpr int kColumnHalves = kWarps == 2 * kMTiles && 2 * kNumKBlocks2 <= kWarps ? 2 : 1;
  static constexpr int kGemm2Warps = kWarps / kColumnHalves;  // that divide K in gemm2
  static constexpr int kColumnTile = kWeightTileRows * kColumnHalves;
  static constexpr int kNumColumnTiles = kHidden / kColumnTile;
  static constexpr int kMaxSharingCtas = 8;  // CTAs that share a column tile, at most
  // A tile of gemm1 can be split along K between two CTAs if each warp has two K blocks of it or more. The first part
  // is not the larger one, as the CTA of the second part waits for it.
  static constexpr int kSplitKBlocks = kNumKBlocks1 / kWarps / 2;  // of a warp, in the first part
  static constexpr int kMaxSplitTiles = 128;
  // A warp has one K block at most of a tile of gemm2. The tile takes no longer than a load, so nothing that it loads
  // may be waited for before the next tile.
  static constexpr bool kShortTiles = kNumKBlocks2 <= kGemm2Warps;

  // Up to so many tokens lie in shared memory, where it has room and loads from L2 would be as long as a tile.
  static constexpr int kStagedTokens = kShortTiles && kSmemLimit >= 227 * 1024 && kHidden <= 2048 ? 16 : 0;
  static constexpr int kStagedPitch = kHidden + 16;  // bytes of a token; the 16 spread neighbours over the banks

  // ---- lists of rows ----
  static constexpr int kRouteAllPairs = kRouteAllTokens * kMaxTokenRows;
  static constexpr int kRouteAllExperts = kNumLocalExperts < kRouteAllPairs ? kNumLocalExperts : kRouteAllPairs;
  static constexpr int kRouteAllRows = kRouteAllPairs + kRouteAllExperts * (kMmaN - 1);
  // as small as they must be
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
