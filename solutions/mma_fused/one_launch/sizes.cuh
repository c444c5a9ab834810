// sizes: constants derived from layer_sizes.cuh and config.cuh, and what the kernel assumes of the problem.
//
// row          a (token, local expert) pair; an expert's rows lie together, padded to multiples of 8
// m_block      up to kBlockM rows of one expert
// n_block      kBlockN1 columns of h: the N of gemm1's tiles
// column tile  kColumnTile columns of the output: the N of gemm2's tiles
// K block      128 of K, which share a scale
// weight tile  64 weight rows by a K block, a stage of the pipeline: of an n_block's up and gate, or of a column tile
//
// M and N are those of x . W^T. In the MMAs the two are swapped: see tiled_mma.cuh.
#pragma once
#include "config.cuh"
#include "layer_sizes.cuh"
#include "threads.cuh"

// ---- threads ----
constexpr int kThreads = kWarps * kWarp;

// ---- weight tiles ----
constexpr int kWarpKBlocks1 = (kNumKBlocks1 + kWarps - 1) / kWarps;  // the most that a warp has
constexpr int kWarpKBlocks2 = (kNumKBlocks2 + kWarps - 1) / kWarps;
constexpr int kWeightTileRows = 64;
constexpr int kWeightTileBytes = kWeightTileRows * kBlockK;
constexpr int kMmaM = 16, kMmaN = 8;              // of an MMA: weight rows, rows
constexpr int kMTiles = kWeightTileRows / kMmaM;  // MMAs for a weight tile's rows

// ---- tiles ----
constexpr int kMaxTokens = 256;      // of the one launch
constexpr int kRouteAllTokens = 12;  // up to here every CTA routes all tokens, which saves a grid barrier
constexpr int kBlockM = 16;          // with 24, sums would not leave the registers for all else
constexpr int kMaxNTiles = kBlockM / kMmaN;                 // MMAs for an m_block's rows, at most
constexpr int kBlockN1 = kWeightTileRows / 2;               // up and gate take a weight tile's rows
constexpr int kNumNBlocks1 = kIntermediate / kBlockN1;      // h has a scale for each row and n_block
constexpr int kNBlocksPerKBlock2 = kBlockK / kBlockN1;      // gemm1's n_blocks in a K block of gemm2
constexpr int kColumnTile = kWeightTileRows;
constexpr int kNumColumnTiles = kHidden / kColumnTile;
constexpr int kMaxSharingCtas = 8;  // CTAs that share a column tile, at most
// A gemm1 tile can be split along K between two CTAs if each warp has two K blocks of it or more. The first part is not
// the larger one, as the CTA of the second part waits for it.
constexpr int kSplitKBlocks = kNumKBlocks1 / kWarps / 2;  // of a warp, in the first part
constexpr int kMaxSplitTiles = 128;
// Time of a warp for a K block, in gemm1 and in gemm2, where waiting for h and reducing sums over warps count, too.
// Measured on an H200.
constexpr int kKBlockTime1 = 4, kKBlockTime2 = 5;

// ---- rows ----
constexpr int kMaxTokenRows = kTopK < kNumLocalExperts ? kTopK : kNumLocalExperts;  // of a token
constexpr int kMaxPairs = kMaxTokens * kMaxTokenRows;                               // rows without padding
constexpr int kMaxActiveExperts = kNumLocalExperts < kMaxPairs ? kNumLocalExperts : kMaxPairs;
constexpr int kMaxMBlocks = kMaxActiveExperts + kMaxPairs / kBlockM;
constexpr int kMaxRows = kMaxPairs + kMaxActiveExperts * (kMmaN - 1);
constexpr int kRouteAllPairs = kRouteAllTokens * kMaxTokenRows;
constexpr int kRouteAllExperts = kNumLocalExperts < kRouteAllPairs ? kNumLocalExperts : kRouteAllPairs;
constexpr int kRouteAllRows = kRouteAllPairs + kRouteAllExperts * (kMmaN - 1);

static_assert(kBlockK % kBlockN1 == 0 && kBlockK % kColumnTile == 0,
              "a weight tile has one scale, or one for each half of W13");
static_assert(kMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(kMaxRows < 1 << 16 && kMaxTokens <= 1 << 16, "a row's token has 16 bits");
