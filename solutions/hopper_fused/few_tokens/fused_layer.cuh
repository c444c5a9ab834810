// fused_layer: sizes, scratch and shared memory of the one launch for few tokens.
//
// A chunk is up to kChunkRows rows of one expert. A slice is kSliceColumns columns of h of one chunk, which gemm1
// computes from 64 weight rows. A row is a (token, local expert) pair; rows lie in atoms of kAtomRows, and an expert's
// last atom is filled up with zero rows.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "arguments.cuh"
#include "registers.cuh"

// ---- division of work ----

// Up to this many tokens one launch is faster than four: up to about 7 rows per expert, measured with 32 of 256 experts
// at 200 to 320 tokens and with 128 at 64 to 128. Shared memory limits it, too.
constexpr int kFusedRowsPerExpert = 7;
constexpr int kFusedFastTokens = kFusedRowsPerExpert * kNumExperts / kTopK / 32 * 32;
constexpr int kFusedFitTokens = kNumLocalExperts <= 32 ? 224 : 128;
constexpr int kFusedMaxTokens = kFusedFastTokens < kFusedFitTokens ? kFusedFastTokens : kFusedFitTokens;
constexpr int kRouteAllTokens = 12;  // up to here every CTA routes all tokens, which saves a grid barrier
constexpr int kBypassTokens = 64;  // up to here chunks of one row bypass the gather: each of their tiles loads the row

constexpr int kSliceColumns = 32;  // 32 rows of each half of W13 are wgmma's M of 64
constexpr int kSlices = kIntermediate / kSliceColumns;  // of an expert; h has one scale per row and slice
constexpr int kSlicesPerStep = kBlockK / kSliceColumns;  // slices of h in a K step of gemm2
constexpr int kChunkRows = 64;

constexpr int kColumnTile = kMmaM;  // output columns of a CTA in gemm2
constexpr int kColumnTiles = kHidden / kColumnTile;
// CTAs that share a column tile, each with every kChunkSplits-th chunk, where one CTA per tile would leave SMs idle.
constexpr int kChunkSplits = kTargetSms / kColumnTiles < 1 ? 1 : kTargetSms / kColumnTiles;
constexpr int kGemm2Ctas = kColumnTiles * kChunkSplits;  // CTAs with a column tile; the others do gemm1 only

constexpr int kMaxPairs = kFusedMaxTokens * (kTopK < kNumLocalExperts ? kTopK : kNumLocalExperts);  // (token, local expert) pairs
constexpr int kMaxActiveExperts = kNumLocalExperts < kMaxPairs ? kNumLocalExperts : kMaxPairs;
constexpr int kMaxChunks = kMaxActiveExperts + kMaxPairs / kChunkRows;
constexpr int kFusedMaxRows = kMaxPairs + kMaxActiveExperts * (kAtomRows - 1);
constexpr uint16_t kNoToken = 0xffff;  // of a row that fills an atom up

static_assert(kFusedMaxTokens % 32 == 0, "masks lie in batches of 32 tokens");
static_assert(kFusedMaxRows < kNoToken && kFusedMaxRows % kAtomRows == 0, "a row's number has 16 bits");
static_assert(kRouteAllTokens <= 32, "a batch of masks holds all tokens that every CTA routes");
static_assert(2 * kSliceColumns == kMmaM, "a slice is one m64: a warpgroup's accumulator");
static_assert(kChunkRows <= 64, "wgmma's N of a chunk is 8, 16, 32 or 64");
static_assert(kNumKBlocks1 % 4 == 0 && kNumKBlocks2 % 2 == 0,
              "gemm1 takes two steps at a time, also where K is split in halves");

// ---- threads ----

constexpr int kFusedThreads = kConsumerThreads + kProducerThreads;
constexpr int kFusedWarps = kFusedThreads / kWarp;
// The accumulators take up to 160 registers (gemm2, N = 64); the producer warps keep addresses only.
constexpr int kFusedProducerRegs = 40, kFusedConsumerRegs = 232;
static_assert(registers_fit(kFusedProducerRegs, kProducerThreads, kFusedConsumerRegs, kConsumerThreads), "one CTA per SM");

// ---- pipeline ----

// A stage holds 16 KB of weights wherever possible, as bytes in flight are what keeps memory busy:
//   gemm1, two slices       two slices' weights of one K step; x of that step
//   gemm1, one slice        two K steps of one slice, one for each warpgroup (split K), if x of both fits: rows <= 32
//   gemm2, rows <= 16       64 weight rows, two K steps, one for each warpgroup (split K); h of both
//   gemm2, rows  > 16       64 weight rows, one K step, which the warpgroups take in turn; h of that step
constexpr int kFusedStages = 6;
constexpr int kSliceBytes = 2 * kSliceColumns * kBlockK;  // weights of a slice for one K step
constexpr int kStageWeightBytes = 2 * kSliceBytes;
constexpr int kStageBytes = kStageWeightBytes + kChunkRows * kBlockK;
constexpr int kStageScales = kChunkRows * kSlicesPerStep;  // floats
constexpr int kSplitKRows1 = 32, kSplitKRows2 = 16;        // rows up to which the warpgroups split K in gemm1 and gemm2
static_assert(kSplitKRows1 * 2 * kBlockK <= kStageBytes - kStageWeightBytes, "x of two K steps fits into a stage");
static_assert(kSliceBytes + kChunkRows * 2 * kBlockK <= kStageBytes &&
                  2 * kSliceBytes + kSplitKRows2 * 4 * kBlockK <= kStageBytes,
              "both parts of h fit behind gemm2's weights");

// ---- global scratch ----

// The calls of a stream share it. What stands before `mask` is zero before and after each launch.
struct FusedScratch {
  unsigned counters[16];                 // see Counter
  unsigned slices_stored[kMaxChunks];    // slices of each chunk whose h is stored
  unsigned sums_added[kColumnTiles];     // if kChunkSplits > 1: CTAs whose sums are in `partial`
  uint32_t mask[kFusedMaxTokens * kMaskWords];  // [batch of 32 tokens][word][token]; bit e: a row of local expert e
  float weight[kFusedMaxTokens][kNumLocalExperts];        // routing weight, where the bit is set
  alignas(16) float partial[kChunkSplits > 1 ? kChunkSplits : 0][kChunkSplits > 1 ? kFusedMaxTokens : 1][kHidden];
  // Rows of a chunk lie together, K step by K step, so that one bulk copy brings what a step needs (see Chunk).
  float x_scale[kFusedMaxRows * kNumKBlocks1];  // K step: [atom][8 rows]
  float h_scale[kFusedMaxRows * kSlices];   // K step: [atom][8 rows][4 slices]; includes the routing weight
  alignas(1024) uint8_t x[kFusedMaxRows * kHidden];  // K step: [atom][8 rows of 128 bytes, swizzled]
  uint8_t h[kFusedMaxRows * kIntermediate * 2];  // K step: [atom][q(h), q(h - q(h))][8 rows of 128 bytes, swizzled]
};
enum Counter { kRouted, kGathered, kFinished };  // CTAs that have done so

// ---- arguments ----

struct FusedArgs : LayerArgs {
  FusedScratch* scratch;
};

struct TensorMaps {
  CUtensorMap w1;  // [E_local][I / 8][half][8 rows][H]; box: 4 times both halves, the 64 rows of a slice
  CUtensorMap w2;  // [E_local * H, I]; box: 64 x 128
};

struct Chunk {
  uint16_t expert, rows;
  uint32_t first_row;  // a multiple of kAtomRows
  __device__ int atoms() const { return (rows + kAtomRows - 1) / kAtomRows; }
  // gemm2's K steps and whether the warpgroups split them.
  __device__ bool split_k() const { return rows <= kSplitKRows2; }
  __device__ int steps() const { return split_k() ? kNumKBlocks2 / 2 : kNumKBlocks2; }
  __device__ bool bypasses_gather(int num_tokens) const { return rows == 1 && num_tokens <= kBypassTokens; }
  // Offsets of a K step in the scratch's arrays.
  __device__ int x_at(int k) const { return first_row * kHidden + k * atoms() * kAtomBytes; }
  __device__ int x_scale_at(int k) const { return first_row * kNumKBlocks1 + k * atoms() * kAtomRows; }
  __device__ int h_at(int k) const { return (first_row * kIntermediate + k * atoms() * kAtomBytes) * 2; }
  __device__ int h_scale_at(int k) const { return first_row * kSlices + k * atoms() * kAtomRows * kSlicesPerStep; }
};

// ---- shared memory ----

// What is needed until gemm1 is over; gemm2's sums overwrite it.
struct Gemm1Smem {
  float x_scale[kNumKBlocks1 * kBypassTokens];  // all scales of x, as in memory, for chunks that bypass the gather
  // Routing weights: where every CTA routes all tokens, and behind a router, of each row with a token.
  float weight[kTopKGiven ? 0 : kRouteAllTokens][kNumLocalExperts];
  float row_weight[kTopKGiven ? kFusedMaxRows : 0];
};

constexpr int kBypassRows = 2;  // rows that bypass the gather: of this tile and of the next
constexpr int kBypassBytes = kBypassRows * kHidden + kBlockK;  // the last row is read as eight, see make_smem_desc_row
constexpr int kSumPitch = kColumnTile + 4;  // floats; the 4 keep the eight lanes of a column in different banks
constexpr int kSumBytes = kFusedMaxTokens * kSumPitch * (int)sizeof(float);
constexpr int kStagesBytes = kFusedStages * kStageBytes;
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int kPoolBytes =
    (kStagesBytes + larger(kSumBytes, kBypassBytes + (int)sizeof(Gemm1Smem)) + 1023) / 1024 * 1024;

struct FusedSmem {
  // In gemm1: stages | rows that bypass the gather | Gemm1Smem, at the end. In gemm2: stages | sums, at the end.
  uint8_t pool[kPoolBytes];  // 1024-byte aligned, as the swizzle requires
  float scales[kFusedStages][kStageScales];
  uint16_t token[kFusedMaxRows];  // of each row, or kNoToken
  // As in FusedScratch; permute transposes it: [batch][expert], bit t. Behind a router it is written so.
  uint32_t mask[kFusedMaxTokens * kMaskWords];
  float amax[kConsumerWarpgroups][kWarpgroupWarps][kChunkRows];  // [warpgroup][warp][row]
  float split_k_sums[4][kWarpgroupThreads];        // warpgroup 1's partial sums, for warpgroup 0 to add
  Chunk chunk[kMaxChunks];
  uint16_t chunk_of_atom[kFusedMaxRows / kAtomRows];
  int first_row[kPaddedLocalExperts];
  int num_chunks, num_rows;  // num_rows includes the rows that fill atoms up
  // mbarriers, see fused_layer.cu
  uint64_t full[kFusedStages], empty[kFusedStages];
  uint64_t split_k_full, split_k_empty;
  uint64_t sums_added[kConsumerWarpgroups];
  uint64_t bypass_loaded, bypass_skipped;

  __device__ uint8_t* stage(int i) { return pool + i * kStageBytes; }
  // nth: of the tile among this CTA's
  __device__ uint8_t* bypass_row(int nth) { return pool + kStagesBytes + nth % kBypassRows * kHidden; }
  // [num_tokens][kSumPitch]
  __device__ float* sums(int num_tokens) {
    return reinterpret_cast<float*>(pool + kPoolBytes) - num_tokens * kSumPitch;
  }
  __device__ Gemm1Smem& gemm1_only() { return *reinterpret_cast<Gemm1Smem*>(pool + kPoolBytes - sizeof(Gemm1Smem)); }
};
static_assert(sizeof(FusedSmem) <= kSmemLimit, "a CTA has 227 KB of shared memory");
static_assert(kStagesBytes + kBypassBytes + sizeof(Gemm1Smem) <= kPoolBytes,
              "rows that bypass the gather do not overlap");
static_assert(kStagesBytes + kSumBytes <= kPoolBytes, "the stages and gemm2's sums do not overlap");

enum FusedBarrier {  // named barriers; see fused_layer.cu
  kBarWarpgroup0 = 1,
  kBarWarpgroup1,
  kBarConsumers,
  kBarRowsRead,
  kBarSliceStored0,
  kBarSliceStored1
};

cudaError_t prepare_fused_layer();  // once for each device
cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);
