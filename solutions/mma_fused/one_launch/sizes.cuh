// sizes: constants derived from layer_sizes.cuh and config.cuh, and what the kernel assumes of the problem.
//
// row          a (token, local expert) pair. An expert's rows lie together, padded to multiples of 8
// m_block      up to kMBlockRows rows of one expert
// n_block      kNBlockColumns columns of h. gemm1 computes them from as many rows of each half of W13
// column tile  kColumnTile columns of the output, the N of gemm2's tiles: a weight tile's, or those of two
// K block      128 of K, the width of a scale's block
// weight tile  64 weight rows by one K block, a stage of the pipeline: rows of W13 for an n_block, or of W2 for a
//              column tile
//
// m_block and n_block are named after x . W^T, but kMmaM, kMmaN, kMTiles and kNTiles after the MMAs, which are swap-AB
// (tiled_mma.cuh): M counts weight rows, N an m_block's rows.
//
// To change a tile: the constants under weight tiles, tiles and threads, and kStages in config.cuh. Static asserts name
// most of what has to follow; the TMA boxes (launch_layer.cu) do by themselves.
#pragma once
#include <cstdint>
#include <type_traits>

#include "mma_fused/one_launch/config.cuh"
#include "common/cuda/layer_sizes.cuh"
#include "common/cuda/threads.cuh"

// ---- weight tiles ----
constexpr int kWeightTileRows = 64;
constexpr int kWeightTileBytes = kWeightTileRows * kBlockK;
constexpr int kMmaM = 16, kMmaN = 8;              // weight rows and rows of an MMA
constexpr int kMTiles = kWeightTileRows / kMmaM;  // MMAs for a weight tile's rows

// ---- rows ----
constexpr int kMaxTokens = 256;  // of the one launch
constexpr int kMBlockRows = 16;  // measured: 24 were no faster, with 8 T = 256 took 27% more; 32 spill sums
constexpr int kMaxTokenRows = kMaxTokenExperts;                                    // of a token
constexpr int kMaxPairs = kMaxTokens * kMaxTokenRows;                               // rows without padding
constexpr int kMaxActiveExperts = kNumLocalExperts < kMaxPairs ? kNumLocalExperts : kMaxPairs;
constexpr int kMaxMBlocks = kMaxActiveExperts + kMaxPairs / kMBlockRows;
constexpr int kMaxRows = kMaxPairs + kMaxActiveExperts * (kMmaN - 1);

// ---- threads ----
// Half as many warps, of half the stages, where the lists of rows need the room
constexpr int kWarps = kSmemLimit >= (kMaxRows > 7168 ? 227 : 163) * 1024 ? 8 : 4;
constexpr int kThreads = kWarps * kWarp;

// ---- tiles ----
// Up to kRouteAllTokens every CTA routes all tokens: no grid barrier. With 4 instead of 12, T = 7 took 2% more.
constexpr bool kManyExperts = kWarps == 4 && kPaddedLocalExperts > 512;  // for what routing has before there are stages
constexpr int kRouteAllTokens = kManyExperts ? 4 : 12;
constexpr int kMaxNTiles = kMBlockRows / kMmaN;              // MMAs for an m_block's rows, at most
constexpr int kNBlockColumns = kWeightTileRows / 2;          // half of a weight tile's rows are up, half gate
constexpr int kNumNBlocks = kIntermediate / kNBlockColumns;  // of an m_block; h has a scale for each row and n_block
constexpr int kNBlocksPerKBlock = kBlockK / kNBlockColumns;  // n_blocks of h in a K block of gemm2
// Where half of the warps have a K block of gemm2 each, the other half has the same ones for the next 64 columns.
constexpr int kColumnHalves = kWarps == 2 * kMTiles && 2 * kNumKBlocks2 <= kWarps ? 2 : 1;
constexpr int kGemm2Warps = kWarps / kColumnHalves;  // that divide K in gemm2
constexpr int kColumnTile = kWeightTileRows * kColumnHalves;
constexpr int kNumColumnTiles = kHidden / kColumnTile;
constexpr int kMaxSharingCtas = 8;  // CTAs that share a column tile, at most
// A tile of gemm1 can be split along K between two CTAs if each warp has two K blocks of it or more. The first part is
// not the larger one, as the CTA of the second part waits for it.
constexpr int kSplitKBlocks = kNumKBlocks1 / kWarps / 2;  // of a warp, in the first part
constexpr int kMaxSplitTiles = 128;
// A warp has one K block at most of a tile of gemm2. The tile takes no longer than a load, so nothing that it loads may
// be waited for before the next tile.
constexpr bool kShortTiles = kNumKBlocks2 <= kGemm2Warps;

// Up to so many tokens lie in shared memory, where it has room and loads from L2 would be as long as a tile.
constexpr int kStagedTokens = kShortTiles && kSmemLimit >= 227 * 1024 && kHidden <= 2048 ? 16 : 0;
constexpr int kStagedPitch = kHidden + 16;  // bytes of a token; the 16 spread neighbouring tokens over the banks

static_assert(kMBlockRows == 2 * kMmaN, "gemm1_swiglu() and gemm2_combine() have a case each for one and two N tiles");
static_assert(kRouteAllTokens <= 32, "one batch of masks, where every CTA routes all tokens");
static_assert(kMTiles == 4 && kMTiles <= kWarps, "warps 0 to 3 have the epilogues, 16 weight rows each");
static_assert(kNBlocksPerKBlock == 4, "lane t of a quad has the scale of n_block t of a K block");
static_assert(kBlockK % kNBlockColumns == 0 && kBlockK % kColumnTile == 0,
              "a weight tile has one scale, or one for each half of W13");

// ---- lists of rows ----
constexpr int kRouteAllPairs = kRouteAllTokens * kMaxTokenRows;
constexpr int kRouteAllExperts = kNumLocalExperts < kRouteAllPairs ? kNumLocalExperts : kRouteAllPairs;
constexpr int kRouteAllRows = kRouteAllPairs + kRouteAllExperts * (kMmaN - 1);
// as small as they must be
using TokenIndex = std::conditional_t<(kMaxRows > 4800), uint8_t, uint16_t>;
using RowsBefore = std::conditional_t<kManyExperts, uint8_t, uint32_t>;

static_assert(kMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(kMaxTokens <= 256, "a row's token, and an expert's rows in earlier batches, may have 8 bits");
static_assert(kMaxRows < 1 << 16, "h's rows and scratch are sized for these");
