// fused_layer: sizes, scratch, arguments and shared memory of the one launch for few tokens.
//
// row           a (token, local expert) pair. An expert's rows lie together, padded to whole swizzle atoms of 8 rows
// m_block       up to kMBlockRows rows of one expert. Both GEMMs are swap-AB: weight rows are wgmma's M of 64, and the
//               m_block's rows, rounded up to 8, 16, 32 or 64, its N. Columns of N behind the rows may hold anything,
//               NaN too: each column of a product depends on its own column of B only, and nobody uses these
// n_block       kNBlockColumns columns of h. gemm1 computes them from as many rows of each half of W13: one M of 64
// K block       128 of K: a row of a swizzle atom, and the width of a scale block of weights and x; h's is an n_block
// weight tile   64 weight rows by one K block: one TMA box, a warpgroup's A
// column tile   kColumnTile output columns, for whose rows of W2 one CTA does all of gemm2
//
// With MXFP4 weights (mxfp4_weights.cuh) a weight tile, the same bytes, is two K blocks: a step, where stages are counted.
//
// To change a tile: the constants under sizes and stages; the static asserts say what has to follow. Each N has a case
// in gemm1_swiglu_quant() and gemm2_combine(). kNBlockColumns is fixed: wgmma's M in gemm1, its K in gemm2.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/arguments.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/weights.cuh"

// ---- sizes ----

// One launch is faster than the four of many_tokens/ up to about 7 rows per expert: measured with 32 of 256 experts at
// 200 to 320 tokens and with 128 at 64 to 128.
constexpr int kFusedRowsPerExpert = 7;
constexpr int kFusedFastTokens = kFusedRowsPerExpert * kNumExperts / kTopK / 32 * 32;
constexpr int kRouteAllTokens = kNumLocalExperts <= 512 ? 12 : 6;  // up to here every CTA routes all: no grid barrier

// K blocks that the GEMMs go through: gemm1 takes two stages at a time, of up to two K blocks; gemm2's warpgroups halve
// K. Those beyond the last have weights of zero, by TMA, and x and h of zero, in scratch.
constexpr int kStepBlocks = kMxfp4Weights ? 2 : 1;  // K blocks of a weight tile
constexpr int kFusedKBlocks1 = round_up(kNumKBlocks1, 4 * kStepBlocks);
constexpr int kFusedKBlocks2 = round_up(kNumKBlocks2, 2 * kStepBlocks);
constexpr int kFusedHidden = kFusedKBlocks1 * kBlockK, kFusedIntermediate = kFusedKBlocks2 * kBlockK;
constexpr int kFusedKSteps1 = kFusedKBlocks1 / kStepBlocks, kFusedKSteps2 = kFusedKBlocks2 / kStepBlocks;

constexpr int kMBlockRows = kMxfp4Weights ? 32 : 64;
constexpr int kNBlockColumns = 32;
constexpr int kNumNBlocks = kFusedIntermediate / kNBlockColumns;  // of an m_block; h has a scale per row and n_block
constexpr int kNBlocksPerKBlock = kBlockK / kNBlockColumns;       // n_blocks of h in a K block of gemm2

constexpr int kColumnTile = kMmaM;
constexpr int kNumColumnTiles = kHidden / kColumnTile;
// CTAs that share a column tile, each with every kCtasPerColumnTile-th m_block, where one alone would leave SMs idle.
constexpr int kCtasPerColumnTile = kTargetSms / kNumColumnTiles;
// The CTAs after them compute gemm1 only. launch_layer.cu refuses devices with fewer SMs.
constexpr int kGemm2Ctas = kNumColumnTiles * kCtasPerColumnTile;

constexpr uint16_t kNoToken = 0xffff;  // of a row of padding
static_assert(kRouteAllTokens <= 32, "a batch of masks holds all tokens that every CTA routes");
static_assert(kCtasPerColumnTile >= 1, "each column tile has a CTA");
static_assert(2 * kNBlockColumns == kMmaM, "an n_block is one m64: a warpgroup's accumulator");
static_assert(kMBlockRows <= 64, "wgmma's N of an m_block is 8, 16, 32 or 64");
constexpr float kWeightFactor = kMxfp4Weights ? 64.0f : 1.0f;  // of the scales of x and h: what A lacks

// ---- threads ----

constexpr int kFusedThreads = kConsumerThreads + kProducerThreads;
constexpr int kFusedWarps = kFusedThreads / kWarp;
// The accumulators take up to 160 registers (gemm2, N = 64); the producer warps keep addresses only, and spill with 24.
constexpr int kFusedProducerRegs = 40, kFusedConsumerRegs = 232;
static_assert(registers_fit(kFusedProducerRegs, kProducerThreads, kFusedConsumerRegs, kConsumerThreads),
              "one CTA per SM");

// ---- stages ----

// A stage holds two weight tiles wherever possible, as bytes in flight are what keeps memory busy, and behind them the
// rows, wgmma's B:
//
//                                     weight tiles                               rows
//   gemm1, two n_blocks               two n_blocks, one for each warpgroup       x of one K block
//   gemm1, one n_block, rows <= 32    two K blocks, one for each warpgroup       x of both K blocks
//   gemm1, one n_block, rows > 32     one, for warpgroup 0                       x of one K block
//   gemm2, rows <= 16                 two K blocks, one for each warpgroup (1)   h of both K blocks, hi and lo
//   gemm2, rows > 16                  one; the warpgroups take turns             h of one K block, hi and lo
//
//   (1) With kMBlocksAlone both for one warpgroup; the next m_block is the other one's.
// With MXFP4 weights a K block is a step here, and rows are half as many.
constexpr int kFusedStages = 6;  // 5 and 7 are slower: measured
// up to here two K blocks a stage: the warpgroups split K
constexpr int kGemm1SplitKRows = 32 / kStepBlocks, kGemm2SplitKRows = 16 / kStepBlocks;
// With so few K blocks gemm2's time is that of its steps, one after the other, so the warpgroups do not share a step:
// up to kGemm2SplitKRows rows each takes every other m_block. Not measured where CTAs share a column tile.
constexpr bool kMBlocksAlone = !kMxfp4Weights && kFusedKBlocks2 <= 4 && kCtasPerColumnTile == 1;
// Up to so many tokens an m_block of one row bypasses the gather and its wait for all CTAs: for each of its tiles
// load_weights copies the row from the caller's FP8 x, all K blocks at once, to one of two buffers. It knows when one
// is free only because every tile fills all stages. The 64 and 16 bound Gemm1Smem's copy of x_scale.
// MXFP4 weights want x in an order of their own, which only the gather makes.
constexpr bool kBypasses = !kMxfp4Weights && kNumKBlocks1 == kFusedKBlocks1 && kNumKBlocks1 / 2 >= kFusedStages;
constexpr int kBypassTokens = !kBypasses ? 0 : kNumLocalExperts * kNumKBlocks1 <= 384 * 64 ? 64 : 16;
constexpr int kWeightTileBytes = kMmaM * kBlockK;
constexpr int kStageWeightBytes = 2 * kWeightTileBytes;
constexpr int kStepRowBytes = kStepBlocks * kBlockK;  // of x, or of a part of h
constexpr int kStageBytes = kStageWeightBytes + kMBlockRows * kStepRowBytes;
constexpr int kStageScales = kMBlockRows * kStepBlocks * kNBlocksPerKBlock;  // floats
static_assert(kGemm1SplitKRows * 2 * kStepRowBytes <= kStageBytes - kStageWeightBytes,
              "x of two K blocks fits into a stage");
static_assert(kWeightTileBytes + kMBlockRows * 2 * kStepRowBytes <= kStageBytes &&
                  2 * kWeightTileBytes + kGemm2SplitKRows * 4 * kStepRowBytes <= kStageBytes,
              "hi and lo of h fit behind gemm2's weights");

// ---- order of K ----

// The i-th K block that gemm1 takes for an n_block. At H 8192 each n_block starts elsewhere in K, which is 2.5 to 3.5%
// faster; at 2048, 3072 and 7168 it is not. Our reading: rows 8 KB apart share a part of memory.
__device__ __forceinline__ int gemm1_k_block(int i, int n_block) {
  if constexpr (kHidden / kStepBlocks % 8192 != 0) return i;
  const int k = i + n_block * kFusedKBlocks1 / kNumNBlocks / 2 * 2;
  return k < kFusedKBlocks1 ? k : k - kFusedKBlocks1;
}

// ---- tokens and rows ----

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

// Of so many tokens at most: pairs of a token and a local expert, experts and m_blocks, rows.
constexpr int pairs_of(int tokens) { return tokens * smaller(kTopK, kNumLocalExperts); }
constexpr int experts_of(int tokens) { return smaller(kNumLocalExperts, pairs_of(tokens)); }
constexpr int m_blocks_of(int tokens) { return experts_of(tokens) + pairs_of(tokens) / kMBlockRows; }
constexpr int rows_of(int tokens) {
  return round_up(pairs_of(tokens) + experts_of(tokens) * (kAtomRows - 1), kAtomRows);
}

constexpr int kBypassRows = 2;  // buffers: of this tile and of the next
constexpr int kBypassBytes = kBypassRows * kHidden + kBlockK;  // wgmma reads 112 bytes past a row: make_smem_desc_row
constexpr int kSumPitch = kColumnTile + 4;  // floats; the 4 spread the tokens of a quad's lanes over the banks
constexpr int kStagesBytes = kFusedStages * kStageBytes;

// Bytes of Gemm1Smem, of FusedSmem's pool, and, with some to spare, of FusedSmem for so many tokens.
constexpr int gemm1_smem_bytes(int tokens) {
  return 4 * (kNumKBlocks1 * kBypassTokens + (kTopKGiven ? rows_of(tokens) : kRouteAllTokens * kNumLocalExperts));
}
// Up to so many tokens gemm2 adds up the rows of a token in shared memory. Above, with MXFP4 weights alone, it stores them
// in y, and add_rows does: weights are read once for as many tokens as there is room for otherwise.
constexpr int kMostSumTokens = kMxfp4Weights ? 64 : 1 << 20;
constexpr int pool_bytes(int tokens) {
  return round_up(kStagesBytes + larger(smaller(tokens, kMostSumTokens) * kSumPitch * 4, kBypassBytes + gemm1_smem_bytes(tokens)), 1024);
}
constexpr int fused_smem_bytes(int tokens) {
  return pool_bytes(tokens) + 4 * larger(kFusedStages * kStageScales, tokens * kMaskWords) + rows_of(tokens) / 4 * 9 +
         4 * tokens * kMaskWords + 8 * m_blocks_of(tokens) + 4 * kPaddedLocalExperts + 5 * 1024;
}
// The most tokens, whole batches of masks, up to `tokens`, for which shared memory has room.
constexpr int fitting_tokens(int tokens) {
  while (tokens > 32 && fused_smem_bytes(tokens) > kSmemLimit) tokens -= 32;
  return tokens;
}
constexpr int kFusedMaxTokens =
    kMxfp4Weights ? fitting_tokens(1024)
                  : larger(32, smaller(kFusedFastTokens, fitting_tokens(kNumLocalExperts <= 40 ? 224 : 128)));
constexpr int kSumTokens = smaller(kFusedMaxTokens, kMostSumTokens);
constexpr int kMaxMBlocks = m_blocks_of(kFusedMaxTokens), kFusedMaxRows = rows_of(kFusedMaxTokens);
static_assert(kFusedMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(kFusedMaxRows < kNoToken && kFusedMaxRows % kAtomRows == 0, "a row's number has 16 bits");

// ---- global scratch ----

enum Counter { kRouted, kGathered, kFinished };  // CTAs that have done so

// Shared by the calls of a stream. All members before `mask` are zero before and after each launch.
// A K block of an m_block's rows is contiguous in x, h and their scales, so that one bulk copy loads it.
struct FusedScratch {
  unsigned counters[16];                            // by Counter; the others are not used
  unsigned n_blocks_stored[kMaxMBlocks];            // of each m_block: n_blocks whose h is stored
  unsigned partials_stored[kNumColumnTiles];        // if kCtasPerColumnTile > 1: CTAs whose sums are in `partial`
  uint32_t mask[kFusedMaxTokens * kMaskWords];      // [batch of 32 tokens][word][token]; bit e: local expert e chosen
  float weight[kFusedMaxTokens][kNumLocalExperts];  // routing weight, where the bit is set
  alignas(16) float
      partial[kCtasPerColumnTile > 1 ? kCtasPerColumnTile : 0][kCtasPerColumnTile > 1 ? kSumTokens : 1][kHidden];
  float x_scale[kFusedMaxRows * kFusedKBlocks1];  // m_block: [K block][row]
  float h_scale[kFusedMaxRows * kNumNBlocks];     // m_block: [K block][row][n_block]; includes the routing weight
  alignas(1024) uint8_t x[kFusedMaxRows * kFusedHidden];  // m_block: [K block][atom][8 rows of 128 bytes, swizzled]
  uint8_t h[kFusedMaxRows * kFusedIntermediate * 2];  // m_block: [K block][atom][hi, lo][8 rows of 128 bytes, swizzled]
};

// ---- arguments ----

struct FusedArgs : LayerArgs {
  FusedScratch* scratch;
  // Above kSumTokens tokens, else null: [rows, H], a row of which has its routing weight, and [T, k], the row of a slot
  // or -1.
  float* y;
  int* token_rows;
  // Scales of MXFP4 weights: [E_local, 2 I, H / 32] and [E_local, H, I / 32], in a byte each.
  __device__ const uint8_t* w1_bytes() const { return reinterpret_cast<const uint8_t*>(w1_scale); }
  __device__ const uint8_t* w2_bytes() const { return reinterpret_cast<const uint8_t*>(w2_scale); }
};

// In bytes, H and I are half as many with MXFP4 weights.
struct TensorMaps {
  CUtensorMap w1;  // [E_local][I / 8][half][8 rows][H]; box: 4 groups of 8 rows of both halves, by 128 of H
  CUtensorMap w2;  // [E_local * H][I]; box: 64 x 128
};

// ---- shared memory ----

struct MBlock {
  uint16_t expert, rows;  // without padding
  uint32_t first_row;     // a multiple of kAtomRows
  __device__ int atoms() const { return (rows + kAtomRows - 1) / kAtomRows; }
  // In gemm2: whether a stage holds a K block for each warpgroup, and the number of stages that the m_block takes.
  __device__ bool split_k() const { return rows <= kGemm2SplitKRows; }
  __device__ int k_iters() const { return split_k() ? kFusedKSteps2 / 2 : kFusedKSteps2; }
  __device__ bool bypasses_gather(int num_tokens) const { return rows == 1 && num_tokens <= kBypassTokens; }
  // Offset of K block k in the scratch's arrays.
  __device__ int x_offset(int k) const { return first_row * kFusedHidden + k * atoms() * kAtomBytes; }
  __device__ int x_scale_offset(int k) const { return first_row * kFusedKBlocks1 + k * atoms() * kAtomRows; }
  __device__ int h_offset(int k) const { return (first_row * kFusedIntermediate + k * atoms() * kAtomBytes) * 2; }
  __device__ int h_scale_offset(int k) const {
    return first_row * kNumNBlocks + k * atoms() * kAtomRows * kNBlocksPerKBlock;
  }
};

// What gemm1 alone needs; gemm2's sums overwrite it.
struct Gemm1Smem {
  float x_scale[kNumKBlocks1 * kBypassTokens];  // all scales of x in the caller's layout, for bypass rows
  // Routing weights: by token where every CTA routes all tokens, by row with top-k given, else in scratch.
  float weight[kTopKGiven ? 0 : kRouteAllTokens][kNumLocalExperts];
  float row_weight[kTopKGiven ? kFusedMaxRows : 0];
};

constexpr int kSumBytes = kSumTokens * kSumPitch * (int)sizeof(float), kPoolBytes = pool_bytes(kFusedMaxTokens);
// Tokens in bf16 that are quantised here (quantise.cuh), as far as their rows fit; each may bypass the gather.
constexpr int kQuantiseTokens = smaller(smaller(kRouteAllTokens, kBypassTokens),
                                        (kPoolBytes - kStagesBytes - kBlockK - (int)sizeof(Gemm1Smem)) / kHidden);

struct FusedSmem {
  // gemm1: stages | bypass rows, or all rows from bf16 | Gemm1Smem, at the end. gemm2: stages | sums, at the end.
  uint8_t pool[kPoolBytes];  // 1024-byte aligned, as the swizzle requires
  float scales[kFusedStages][kStageScales];
  uint32_t behind_scales[larger(0, kFusedMaxTokens * kMaskWords - kFusedStages * kStageScales)];  // see permute
  uint16_t token[kFusedMaxRows];  // of each row, or kNoToken
  // As in FusedScratch until permute transposes it to [batch of 32 tokens][expert]: bit t, the expert has a row of the
  // batch's token t. With top-k given it is written so.
  uint32_t mask[kFusedMaxTokens * kMaskWords];
  float amax[kConsumerWarpgroups][kWarpgroupWarps][kMBlockRows];
  float split_k_sums[4][kWarpgroupThreads];  // of warpgroup 1, on their way to warpgroup 0
  MBlock m_block[kMaxMBlocks];
  uint16_t m_block_of_atom[kFusedMaxRows / kAtomRows];
  int first_row[kPaddedLocalExperts];
  int num_m_blocks, num_rows;  // num_rows includes padding
  // mbarriers: see the table in fused_layer.cu
  uint64_t full[kFusedStages], empty[kFusedStages];
  uint64_t split_k_full, split_k_empty;
  uint64_t sums_added[kConsumerWarpgroups];
  uint64_t bypass_loaded, bypass_skipped;

  __device__ uint8_t* stage(int i) { return pool + i * kStageBytes; }
  __device__ uint8_t* bypass_row(int nth_tile) { return pool + kStagesBytes + nth_tile % kBypassRows * kHidden; }
  __device__ uint8_t* quantised_row(int token) { return pool + kStagesBytes + token * kHidden; }
  // [num_tokens][kSumPitch]: this CTA's output columns in fp32
  __device__ float* sums(int num_tokens) {
    return reinterpret_cast<float*>(pool + kPoolBytes) - num_tokens * kSumPitch;
  }
  __device__ Gemm1Smem& gemm1_smem() { return *reinterpret_cast<Gemm1Smem*>(pool + kPoolBytes - sizeof(Gemm1Smem)); }
};
static_assert(sizeof(FusedSmem) <= kSmemLimit, "a CTA has 227 KB of shared memory");
static_assert(kStagesBytes + kBypassBytes + sizeof(Gemm1Smem) <= kPoolBytes, "bypass rows overlap nothing");
static_assert(kStagesBytes + kSumBytes <= kPoolBytes, "the stages and gemm2's sums do not overlap");

// ---- barriers ----

enum FusedBarrier {  // named barriers: see the table in fused_layer.cu
  kBarWarpgroup0 = 1,
  kBarWarpgroup1,
  kBarConsumers,
  kBarRowsRead,
  kBarGathered,
  kBarPartials,
  kBarAllPartials,
  kBarHStored0,
  kBarHStored1
};

// ---- launch ----

cudaError_t prepare_fused_layer();  // once for each device
// Without x_scale, x is bf16, and kQuantiseTokens is the most.
cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);
