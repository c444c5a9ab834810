// sizes: constants derived from layer_sizes.cuh and config.cuh, and what the kernel assumes of the problem.
#pragma once
#include "config.cuh"
#include "layer_sizes.cuh"
#include "threads.cuh"

// ---- threads ----
constexpr int kThreads = kWarps * kWarp;

// ---- units of weights ----
constexpr int kWarpSteps1 = (kNumKBlocks1 + kWarps - 1) / kWarps;  // of them, the most that a warp has
constexpr int kWarpSteps2 = (kNumKBlocks2 + kWarps - 1) / kWarps;
constexpr int kUnitRows = 64;
constexpr int kUnitBytes = kUnitRows * kBlockK;
constexpr int kMmaM = 16, kMmaN = 8;
constexpr int kMTiles = kUnitRows / kMmaM;  // of a unit

// ---- division of work ----
constexpr int kMaxTokens = 256;      // of the one launch
constexpr int kRouteAllTokens = 12;  // up to here every CTA routes all tokens, which saves a grid barrier
constexpr int kSliceColumns = 32;    // 32 rows of each half of W13 are a unit's rows
constexpr int kSlices = kIntermediate / kSliceColumns;  // of an expert; h has one scale for each row and slice
constexpr int kSlicesPerStep = kBlockK / kSliceColumns;
// Of a K step of a warp in gemm1 and in gemm2, where a chunk's sum over warps and its wait for h count, too. Measured on
// an H200.
constexpr int kStepTime1 = 4, kStepTime2 = 5;
// A slice can be cut for two CTAs if each warp has two K steps of it or more. The first half is not the larger one,
// as the second waits for it.
constexpr int kCutSteps = kNumKBlocks1 / kWarps / 2;  // of a warp, in the first half
constexpr int kMaxCuts = 128;                     // slices that are cut, at most
constexpr int kChunkRows = 16;  // sums of 24 would not leave the registers for all else
constexpr int kMaxTiles = kChunkRows / kMmaN;
constexpr int kColumnTile = kUnitRows;  // output columns of a column tile
constexpr int kColumnTiles = kHidden / kColumnTile;
constexpr int kMaxSplits = 8;  // CTAs that share a column tile, at most

// ---- rows ----
constexpr int kMaxTokenRows = kTopK < kNumLocalExperts ? kTopK : kNumLocalExperts;  // of a token
constexpr int kMaxPairs = kMaxTokens * kMaxTokenRows;           // (token, local expert) pairs
constexpr int kMaxActiveExperts = kNumLocalExperts < kMaxPairs ? kNumLocalExperts : kMaxPairs;
constexpr int kMaxChunks = kMaxActiveExperts + kMaxPairs / kChunkRows;
constexpr int kMaxRows = kMaxPairs + kMaxActiveExperts * (kMmaN - 1);  // an expert's rows are padded to tiles of 8
constexpr int kRouteAllPairs = kRouteAllTokens * kMaxTokenRows;
constexpr int kRouteAllRows = kRouteAllPairs + (kNumLocalExperts < kRouteAllPairs ? kNumLocalExperts : kRouteAllPairs) * (kMmaN - 1);

static_assert(2 * kSliceColumns == kUnitRows && kBlockK % kColumnTile == 0,
              "a unit has one scale, or one for each half of W13");
static_assert(kMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(kMaxRows < 1 << 16 && kMaxTokens <= 1 << 16, "a row's token has 16 bits");
