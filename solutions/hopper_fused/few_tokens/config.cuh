// config: what is chosen for the single launch that computes the layer with few tokens, and what follows from it:
// tiles, stages, threads, how many tokens there is room for, and how shared memory is divided.
//
// row           a (token, local expert) pair. An expert's rows lie together, padded to whole swizzle atoms of 8 rows
// m_block       up to kMBlockRows rows of one expert. Both GEMMs are swap-AB: weight rows are wgmma's M of 64, and the
//               m_block's rows, rounded up to 8, 16, 32 or 64, its N. Columns of N beyond the rows may hold anything,
//               NaN too: a column of a product depends on its own column of B only, and nobody uses these columns
// n_block       kNBlockColumns columns of h. gemm1 computes them from as many rows of each half of W13: one M of 64
// K block       128 of K: a row of a swizzle atom, and the width of a scale block of weights and x. (h has a scale for
//               each row and n_block)
// weight tile   64 weight rows by one K block: one TMA box, a warpgroup's A
// column tile   kColumnTile output columns, for whose rows of W2 one CTA does all of gemm2
//
// With MXFP4 weights (mxfp4_weights.cuh) a weight tile has as many bytes, and so two K blocks. What of K a weight tile
// has is called a step: one K block, or two.
//
// To change a tile, edit the constants of Tiles that are plain numbers; the static asserts say what has to be changed
// with them. Each N has a case in gemm1_swiglu_quant() and gemm2_combine(). kNBlockColumns is fixed, by wgmma's M in
// gemm1 and its K in gemm2.
#pragma once
#include <cstdint>

#include "common/cuda/layer/interface.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "common/cuda/layer/weights.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// ---- tiles, stages and threads ----

struct Tiles {
  // Whether H is large beside I, as on tensor-parallel ranks: as Grouped::kLongRows.
  static constexpr bool kLongRows = !kMxfp4Weights && kHidden >= 8 * kIntermediate;

  // K blocks that the GEMMs go through. K is rounded up, because gemm1 takes two stages at a time, of up to two steps,
  // and because with MXFP4 weights gemm2's warpgroups have half of K each. In K blocks beyond K, weights are zero by
  // TMA, and x and h are zero in scratch.
  static constexpr int kStepBlocks = kMxfp4Weights ? 2 : 1;  // K blocks of a weight tile
  static constexpr int kKBlocks1 = round_up(kNumKBlocks1, 4 * kStepBlocks);
  static constexpr int kKBlocks2 = kMxfp4Weights ? round_up(kNumKBlocks2, 2 * kStepBlocks) : kNumKBlocks2;
  static constexpr int kKSteps1 = kKBlocks1 / kStepBlocks;
  static constexpr int kKSteps2 = kKBlocks2 / kStepBlocks;
  static constexpr int kSplitKSteps2 = (kKSteps2 + 1) / 2;  // stages that gemm2 takes where each holds two steps
  static constexpr bool kHalfStage2 = kKSteps2 % 2 != 0;    // whether the last of them holds one
  static constexpr int kPaddedHidden = kKBlocks1 * kBlockK;
  static constexpr int kPaddedIntermediate = kKBlocks2 * kBlockK;

  static constexpr int kMBlockRows = kMxfp4Weights ? 32 : 64;
  static constexpr int kNBlockColumns = 32;
  // n_blocks of an m_block. h has a scale for each row and n_block.
  static constexpr int kNumNBlocks = kPaddedIntermediate / kNBlockColumns;
  static constexpr int kNBlocksPerKBlock = kBlockK / kNBlockColumns;  // n_blocks of h in a K block of gemm2

  static constexpr int kColumnTile = kMmaM;
  static constexpr int kNumColumnTiles = kHidden / kColumnTile;
  // CTAs that share a column tile: more than one where one alone would leave SMs idle. Each of them has every
  // kCtasPerColumnTile-th m_block.
  static constexpr int kCtasPerColumnTile = kTargetSms / kNumColumnTiles;
  // CTAs with a column tile. The CTAs after them compute gemm1 only. launch_layer.cu refuses devices with fewer SMs.
  static constexpr int kGemm2Ctas = kNumColumnTiles * kCtasPerColumnTile;

  static constexpr int kThreads = kConsumerThreads + kProducerThreads;
  static constexpr int kWarps = kThreads / kWarp;
  // The accumulators take up to 160 registers (gemm2, N = 64). The producer warps keep addresses only, but spill with
  // 24 registers.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  // A stage holds two weight tiles wherever possible, as bytes in flight are what keeps memory busy, and behind them
  // the rows, wgmma's B:
  //
  //                                     weight tiles                               rows
  //   gemm1, two n_blocks               two n_blocks, one for each warpgroup       x of one K block
  //   gemm1, one n_block, rows <= 32    two K blocks, one for each warpgroup       x of both K blocks
  //   gemm1, one n_block, rows > 32     one, for warpgroup 0                       x of one K block
  //   gemm2, rows <= 16                 two K blocks, one for each warpgroup (1)   h of both K blocks, hi and lo
  //   gemm2, rows > 16                  one; the warpgroups take turns             h of one K block, hi and lo
  //
  //   (1) With kMBlocksAlone both for one warpgroup; the next m_block is the other one's. With kHalfStage2 an m_block's
  //       last stage holds one.
  // With MXFP4 weights a K block is a step here, and rows are half as many.
  static constexpr int kStages = 6;  // 5 and 7 are slower: measured
  // Up to so many rows a stage has two K blocks, and the warpgroups split K.
  static constexpr int kGemm1SplitKRows = 32 / kStepBlocks;
  static constexpr int kGemm2SplitKRows = 16 / kStepBlocks;
  // With so few K blocks gemm2 takes as long as its steps do one after the other. So the warpgroups do not share an
  // m_block: up to kGemm2SplitKRows rows each takes every other one.
  static constexpr bool kMBlocksAlone = kLongRows && kKBlocks2 <= 6;

  static constexpr int kWeightTileBytes = kMmaM * kBlockK;
  static constexpr int kStageWeightBytes = 2 * kWeightTileBytes;
  static constexpr int kStepRowBytes = kStepBlocks * kBlockK;  // of x, or of a part of h
  static constexpr int kStageBytes = kStageWeightBytes + kMBlockRows * kStepRowBytes;
  static constexpr int kStagesBytes = kStages * kStageBytes;
  static constexpr int kStageScales = kMBlockRows * kStepBlocks * kNBlocksPerKBlock;  // floats

  // Up to so many tokens every CTA routes all of them, without a grid barrier.
  static constexpr int kRouteAllTokens = kNumLocalExperts <= 512 ? 12 : 6;
  // Up to kBypassTokens tokens an m_block of one row bypasses the gather, and the wait for all CTAs that follows it.
  // For each of its tiles load_weights copies the row from the caller's FP8 x, all K blocks at once, to one of two
  // buffers. It knows when a buffer is free because every tile fills all stages, hence the last condition. MXFP4
  // weights want x in an order of their own, which only the gather makes. 64 and 16 bound the size of Gemm1Smem's copy
  // of x_scale.
  static constexpr bool kBypasses = !kMxfp4Weights && kNumKBlocks1 == kKBlocks1 && kNumKBlocks1 / 2 >= kStages;
  static constexpr int kBypassTokens = !kBypasses ? 0 : kNumLocalExperts * kNumKBlocks1 <= 384 * 64 ? 64 : 16;
  static constexpr int kBypassRows = 2;  // buffers, each for a row
  // wgmma reads 112 bytes past a row, see make_smem_desc_row
  static constexpr int kBypassBytes = kBypassRows * kHidden + kBlockK;

  static constexpr int kSumPitch = kColumnTile + 4;  // floats; the 4 spread the tokens of a quad's lanes over the banks
  // Up to so many tokens gemm2 adds up the rows of a token in shared memory. With MXFP4 weights one launch takes more
  // tokens than there is room for sums, so that weights are read once for all of them. Then gemm2 stores rows in y, and
  // add_rows adds them up.
  static constexpr int kMostSumTokens = kMxfp4Weights ? 64 : 1 << 20;

  // One launch is faster than the four of many_tokens/ up to about 7 rows per expert: measured with 32 of 256 experts
  // at 200 to 320 tokens and with 128 at 64 to 128.
  static constexpr int kRowsPerExpert = 7;
  static constexpr int kFastTokens = kRowsPerExpert * kNumExperts / kTopK / 32 * 32;
  // With long rows one launch is faster up to 80 tokens: measured at 64 to 128 tokens, with 1.2 to 8 rows per expert.
  static constexpr int kLongRowsTokens = 80;

  static constexpr float kWeightFactor = kMxfp4Weights ? 64.0f : 1.0f;  // of the scales of x and h: what A lacks
};

static_assert(Tiles::kRouteAllTokens <= 32, "a batch of masks holds all tokens that every CTA routes");
static_assert(Tiles::kCtasPerColumnTile >= 1, "each column tile has a CTA");
static_assert(2 * Tiles::kNBlockColumns == kMmaM, "an n_block is one m64: a warpgroup's accumulator");
static_assert(Tiles::kMBlockRows <= 64, "wgmma's N of an m_block is 8, 16, 32 or 64");
static_assert(registers_fit(Tiles::kProducerRegisters, kProducerThreads, Tiles::kConsumerRegisters, kConsumerThreads),
              "one CTA per SM");
static_assert(Tiles::kGemm1SplitKRows * 2 * Tiles::kStepRowBytes <= Tiles::kStageBytes - Tiles::kStageWeightBytes,
              "x of two K blocks fits into a stage");
static_assert(Tiles::kWeightTileBytes + Tiles::kMBlockRows * 2 * Tiles::kStepRowBytes <= Tiles::kStageBytes &&
                  2 * Tiles::kWeightTileBytes + Tiles::kGemm2SplitKRows * 4 * Tiles::kStepRowBytes <=
                      Tiles::kStageBytes,
              "hi and lo of h fit behind gemm2's weights");

// ---- what so many tokens take, at most ----

// Pairs of a token and a local expert; experts that have rows; m_blocks; rows.
constexpr int pairs_of(int tokens) { return tokens * kMaxTokenExperts; }
constexpr int experts_of(int tokens) { return smaller(kNumLocalExperts, pairs_of(tokens)); }
constexpr int m_blocks_of(int tokens) { return experts_of(tokens) + pairs_of(tokens) / Tiles::kMBlockRows; }
constexpr int rows_of(int tokens) {
  return round_up(pairs_of(tokens) + experts_of(tokens) * (kAtomRows - 1), kAtomRows);
}

// Bytes of shared memory: of Gemm1Smem, of FusedSmem's pool, and, with some to spare, of the whole FusedSmem.
constexpr int gemm1_smem_bytes(int tokens) {
  const int weights = kTopKGiven ? rows_of(tokens) : Tiles::kRouteAllTokens * kNumLocalExperts;
  return 4 * (kNumKBlocks1 * Tiles::kBypassTokens + weights);
}
constexpr int pool_bytes(int tokens) {
  const int sums = smaller(tokens, Tiles::kMostSumTokens) * Tiles::kSumPitch * 4;
  return round_up(Tiles::kStagesBytes + larger(sums, Tiles::kBypassBytes + gemm1_smem_bytes(tokens)), 1024);
}
constexpr int fused_smem_bytes(int tokens) {
  const int scales = 4 * larger(Tiles::kStages * Tiles::kStageScales, tokens * kMaskWords);
  const int lists = rows_of(tokens) / 4 * 9 + 4 * tokens * kMaskWords + 8 * m_blocks_of(tokens);
  return pool_bytes(tokens) + scales + lists + 4 * kPaddedLocalExperts + 5 * 1024;
}
// Returns the most tokens that shared memory has room for: whole batches of 32, up to `tokens`.
constexpr int fitting_tokens(int tokens) {
  while (tokens > 32 && fused_smem_bytes(tokens) > kSmemLimit) tokens -= 32;
  return tokens;
}

// ---- tokens ----

struct Config : Tiles {
  // The most tokens that the one launch serves: where it is fast, FP8 up to kFastTokens, as far as there is room.
  static constexpr int kMaxTokens =
      kMxfp4Weights ? fitting_tokens(1024)
                    : larger(32, smaller(kFastTokens, fitting_tokens(kNumLocalExperts <= 40 ? 224 : 128)));
  // The most tokens that take the one launch. (With a sum over ranks it is kMaxTokens: a second launch would cost
  // more.)
  static constexpr int kOneLaunchTokens = kLongRows ? smaller(kMaxTokens, kLongRowsTokens) : kMaxTokens;
  static constexpr int kMaxMBlocks = m_blocks_of(kMaxTokens);
  static constexpr int kMaxRows = rows_of(kMaxTokens);
  static constexpr int kSumTokens = smaller(kMaxTokens, kMostSumTokens);

  static constexpr int kPoolBytes = pool_bytes(kMaxTokens);
  static constexpr int kSumBytes = kSumTokens * kSumPitch * (int)sizeof(float);
  static constexpr int kGemm1SmemBytes = gemm1_smem_bytes(kMaxTokens);
  // The most tokens in bf16 that the launch itself quantises (quantise.cuh): as many as there is room for. Each of them
  // may bypass the gather.
  static constexpr int kQuantiseTokens = smaller(smaller(kRouteAllTokens, kBypassTokens),
                                                 (kPoolBytes - kStagesBytes - kBlockK - kGemm1SmemBytes) / kHidden);
};

constexpr uint16_t kNoToken = 0xffff;  // of a row of padding

static_assert(Config::kMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(Config::kMaxRows < kNoToken && Config::kMaxRows % kAtomRows == 0, "a row's number has 16 bits");
static_assert(Config::kStagesBytes + Config::kBypassBytes + Config::kGemm1SmemBytes <= Config::kPoolBytes,
              "bypass rows overlap nothing");
static_assert(Config::kStagesBytes + Config::kSumBytes <= Config::kPoolBytes,
              "the stages and gemm2's sums do not overlap");

// ---- order of K ----

// Returns the i-th K block that gemm1 takes for an n_block. At H 8192 each n_block starts elsewhere in K, which is 2.5
// to 3.5% faster; at 2048, 3072 and 7168 it is not. We think that rows 8 KB apart share a part of memory.
__device__ __forceinline__ int gemm1_k_block(int i, int n_block) {
  if constexpr (kHidden / Config::kStepBlocks % 8192 != 0) return i;
  const int k = i + n_block * Config::kKBlocks1 / Config::kNumNBlocks / 2 * 2;
  return k < Config::kKBlocks1 ? k : k - Config::kKBlocks1;
}

}  // namespace hopper_fused
