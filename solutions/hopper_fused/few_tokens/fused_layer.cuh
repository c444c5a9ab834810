// layer: the layer's fixed sizes, what the kernel is given, and what lies where in shared memory.
#pragma once
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>

#include "sizes.cuh"

constexpr int kBlockK = 128;               // K and columns of a block scale
constexpr int kKSteps1 = kHidden / kBlockK;     // K steps of gemm1
constexpr int kKSteps2 = kInter / kBlockK;      // K steps of gemm2
constexpr int kSliceColumns = 32;                 // columns of h that a warpgroup owns: 32 of up and 32 of gate make m64
constexpr int kSlices = kInter / kSliceColumns;    // units of an expert; h has one scale a row and unit
constexpr int kColumnTile = 64;              // output columns of a block in gemm2
constexpr int kColumnTiles = kHidden / kColumnTile;
constexpr int kMinSms = 112;         // multiprocessors that are taken for granted
constexpr int kTargetSms = 132;         // those of the devices this is for
// Where columns alone would leave blocks idle in gemm2, several share a column block, each with every so manieth segment.
constexpr int kChunkSplits = kTargetSms / kColumnTiles < 1 ? 1 : kTargetSms / kColumnTiles;
constexpr int kGemm2Ctas = kColumnTiles * kChunkSplits;  // blocks that take part in gemm2
constexpr int kFusedMaxTokens = kLocal <= 32 ? 224 : 128;  // of this kernel; above, several kernels are faster
static_assert(kFusedMaxTokens % 32 == 0, "masks lie 32 tokens together");
constexpr int kChunkRows = 64;                // rows of an expert that are multiplied at once
constexpr int kMaxPairs = kFusedMaxTokens * (kTopK < kLocal ? kTopK : kLocal);  // rows of all experts
constexpr int kMaxActiveExperts = kLocal < kMaxPairs ? kLocal : kMaxPairs;     // that have rows
constexpr int kMaxChunks = kMaxActiveExperts + kMaxPairs / kChunkRows;
constexpr int kAtomRows = 8;                 // rows that lie together, an expert's last group filled up with zero rows
constexpr int kFusedMaxRows = kMaxPairs + kMaxActiveExperts * (kAtomRows - 1);
static_assert(kFusedMaxRows < 0xffff && kFusedMaxRows % kAtomRows == 0, "");
constexpr uint16_t kNoToken = 0xffff;     // of a row that fills a group up
constexpr int kRouteAllTokens = 12;            // up to here every block routes all tokens itself, so that none waits for others
constexpr int kEvictFirstExperts = 8;     // with rows: up to here weights leave L2 first; above, they leave its order as it is
constexpr int kBypassTokens = 64;         // up to here a segment of one row is direct: each of its tiles copies the row itself
constexpr int kSumPitch = kColumnTile + 4;   // floats; 4 keeps the eight lanes of a row apart in the banks

constexpr int kWarpgroupThreads = 128;
constexpr int kConsumerThreads = 2 * kWarpgroupThreads;
constexpr int kFusedThreads = kConsumerThreads + kWarpgroupThreads;

constexpr int kFusedStages = 6;  // of the ring
constexpr int kSliceBytes = 2 * kSliceColumns * kBlockK;   // weights of a unit for one K step
// A slot holds 16 KB of weights where that is possible, for the bytes in flight are what keeps memory busy:
//   gemm1, two units       two blocks of 64 weight rows, one K step; x
//   gemm1, one unit        one unit, two K steps, one a warpgroup ("split"), if x of both fits: rows <= 32
//   gemm2, rows <= 16      64 weight rows, two K steps, one a warpgroup; h of both
//   gemm2, rows  > 16      64 weight rows, one K step, the warpgroups take turns; h
constexpr int kStageWeightBytes = 2 * kSliceBytes;
constexpr int kStageBytes = kStageWeightBytes + kChunkRows * kBlockK;
constexpr int kSplitKRows1 = 32, kSplitKRows2 = 16;
constexpr int kAtomBytes = kAtomRows * kBlockK;     // bytes of a group's K step, swizzled as wgmma reads it
constexpr int kStageScales = kChunkRows * 4;         // floats of a slot's row scales

// Global scratch, reused by later calls on the same stream. What stands before `mask` is zero before and after each launch.
static_assert(kKSteps1 % 4 == 0 && kKSteps2 % 2 == 0, "gemm1 takes two steps at a time, and halves of them where K is split");
struct FusedScratch {
  unsigned counters[16];                       // see Counter
  unsigned slices_stored[kMaxChunks];            // units of each segment whose h is there
  unsigned sums_added[kColumnTiles];               // where kChunkSplits > 1: blocks whose sums are in `partial`
  uint32_t mask[kFusedMaxTokens * kMaskWords];          // 32 tokens by 32 tokens: [word][32 tokens]; bit e: a row of local expert e
  float weight[kFusedMaxTokens][kLocal];            // routing weight, where the bit is set
  alignas(16) float partial[kChunkSplits > 1 ? kChunkSplits : 0][kChunkSplits > 1 ? kFusedMaxTokens : 1][kHidden];  // gemm2's sums
  // Rows of a segment together, K step by K step, so that what a step needs is one piece (see Segment).
  float x_scale[kFusedMaxRows * kKSteps1];               // K step: [group][8 rows]
  float h_scale[kFusedMaxRows * kSlices];            // K step: [group][8 rows][4 units]; times the routing weight
  alignas(1024) uint8_t x[kFusedMaxRows * kHidden]; // K step: [group][8 rows of 128, swizzled]
  uint8_t h[kFusedMaxRows * kInter * 2];            // K step: [group][q(h), q(h - q(h))][8 rows of 128, swizzled]
};
enum Counter { kRouted, kGathered, kFinished };

// Offset of a row's byte in a group's K step: rows of 128 bytes, 16-byte pieces swizzled by the row's number.
__device__ __forceinline__ int swizzle_128b(int row, int byte) {
  return row * kBlockK + ((byte / 16 ^ row) * 16) + byte % 16;
}

// What the layer is given, but for the weights, which the copy engine is told of.
struct Layer {
  const void* logits;           // [T, E] fp32, or bf16 if kRenorm
  const uint16_t* bias;         // [E] bf16, or none if kRenorm
  const uint8_t* x;             // [T, H] fp8
  const float* x_scale;         // [H / 128, T]
  const float* w1_scale;        // [E_local, 2 I / 128, H / 128]
  const float* w2_scale;        // [E_local, H / 128, I / 128]
  uint16_t* output;             // [T, H] bf16
  int num_tokens;
  int local_expert_offset;
  float routed_scaling_factor;
};

struct FusedArgs : Layer {
  FusedScratch* scratch;
};

struct TensorMaps {
  CUtensorMap w1;  // [E_local][I / 8 groups][up, gate][8 rows][H], box 4 groups: the 64 rows of a unit
  CUtensorMap w2;  // [E_local * H, I], box 64 x 128
};

struct Chunk {  // up to kChunkRows rows of one expert
  uint16_t expert, rows;
  uint32_t first_row;  // a multiple of kAtomRows
  __device__ int groups() const { return (rows + kAtomRows - 1) / kAtomRows; }
  __device__ bool split_k() const { return rows <= kSplitKRows2; }
  __device__ int steps() const { return split_k() ? kKSteps2 / 2 : kKSteps2; }
  // Its row needs no gathering and no wait for it.
  __device__ bool bypasses_gather(int num_tokens) const { return rows == 1 && num_tokens <= kBypassTokens; }
  // where a K step's piece of each scratch array begins
  __device__ int x_at(int k) const { return first_row * kHidden + k * groups() * kAtomBytes; }
  __device__ int x_scale_at(int k) const { return first_row * kKSteps1 + k * groups() * kAtomRows; }
  __device__ int h_tile(int k) const { return (first_row * kInter + k * groups() * kAtomBytes) * 2; }
  __device__ int h_scale_at(int k) const { return first_row * kSlices + k * groups() * kAtomRows * 4; }
};

struct RoutingSmem {  // what a block keeps to itself while tokens are few; gemm2's sums take its place
  float x_scale[kKSteps1 * kBypassTokens];  // all of it, as in memory, for direct segments
  float weight[kRouteAllTokens][kLocal];    // where every block routes all tokens
};

constexpr int max_bytes(int sums, int routing) { return sums > routing ? sums : routing; }
// Bytes for slots, and behind them sums, or direct rows and what is few.
constexpr int kPoolBytes = (kFusedStages * kStageBytes + max_bytes(kFusedMaxTokens * kSumPitch * (int)sizeof(float),
                                                      2 * kHidden + kBlockK + (int)sizeof(RoutingSmem)) + 1023) / 1024 * 1024;

struct FusedSmem {
  // The ring's slots from the front on, 1024-byte aligned as the swizzle wants, then the rows of direct segments; Few or
  // sums at the end.
  uint8_t pool[kPoolBytes];
  float scales[kFusedStages][kStageScales];
  uint16_t token[kFusedMaxRows];  // of each row, or kNoToken
  uint32_t mask[kFusedMaxTokens * kMaskWords];  // as in Scratch; then [32 tokens][kPaddedLocal experts]: which of the tokens have a row
  float amax[2][4][kChunkRows];  // warpgroup, warp, row
  float split_k_sums[4][kWarpgroupThreads];  // sums that the second warpgroup hands to the first, where they split K
  Chunk chunk[kMaxChunks];
  uint16_t chunk_of_atom[kFusedMaxRows / kAtomRows];  // of each group of rows
  int first_row[kPaddedLocal];
  int num_chunks, num_rows;  // rows with those that fill groups up
  uint64_t full[kFusedStages], empty[kFusedStages];
  uint64_t split_k_full, split_k_empty;               // sums lie in `handover`; they are read
  uint64_t sums_added[2];                    // a warpgroup has added a segment's sums, now the other
  uint64_t bypass_loaded, bypass_skipped;  // load_weights is through with a direct tile; load_activations knows

  __device__ uint8_t* stage(int i) { return pool + i * kStageBytes; }
  // Of the block's tiles in turn; a direct tile's row, all of it.
  __device__ uint8_t* bypass_row(int turn) { return pool + kFusedStages * kStageBytes + turn % 2 * kHidden; }
  // gemm2's sums: [num_tokens][kSumPitch]
  __device__ float* sums(int num_tokens) { return reinterpret_cast<float*>(pool + kPoolBytes) - num_tokens * kSumPitch; }
  // before gemm2
  __device__ RoutingSmem& routing() { return *reinterpret_cast<RoutingSmem*>(pool + kPoolBytes - sizeof(RoutingSmem)); }
};
static_assert(kFusedStages * kStageBytes + 2 * kHidden + kBlockK + sizeof(RoutingSmem) <= kPoolBytes, "direct rows lie before what is few");
static_assert(kFusedStages * kStageBytes + kFusedMaxTokens * kSumPitch * sizeof(float) <= kPoolBytes, "and slots before sums");

enum NamedBarrier {
  kBarWarpgroup0 = 1,
  kBarWarpgroup1,
  kBarConsumers,
  kBarRowsRead,    // the tokens of this block's rows are in registers
  kBarSliceStored0,   // the first warpgroup has stored a unit of h; with a warp that tells the other blocks
  kBarSliceStored1    // and the second
};

// Position in a ring of slots, counted alike by whoever fills and whoever drains.
template <int kSlots>
struct PipelineState {
  int stage = 0, phase = 0;
  __device__ void next() {
    if (++stage == kSlots) stage = 0, phase ^= 1;
  }
  __device__ void pass(int steps) {  // as many at once
    stage += steps;
    phase ^= stage / kSlots & 1;
    stage %= kSlots;
  }
};

// gemm1's work is the units of all segments in one line, which the blocks take from the front, side by side: so h of the
// first segments is complete long before that of the last, and gemm2 begins with them while other blocks still do units.
// A tile is two neighbouring units of one segment, or one.
//
//   full rounds   every block as many units, two by two
//   what is left  less than a unit a block: goes to the blocks that have no part in gemm2, as many as they can do
//                 before the others come to gemm2's last segment; what is left then, one each, to the others
struct SliceTile {
  Chunk chunk;
  int number, slice, width;  // number: of the segment
  int turn;                 // among the block's tiles
  __device__ bool split_k() const { return width == 1 && chunk.rows <= kSplitKRows1; }
  __device__ int steps() const { return split_k() ? kKSteps1 / 2 : kKSteps1; }
};
struct SliceScheduler {
  const FusedSmem& s;
  int taken = 0;
  __device__ explicit SliceScheduler(const FusedSmem& smem) : s(smem) {}
  // This block's next tile; false when there is none.
  __device__ bool take(SliceTile& t) {
    const int block = blockIdx.x, ctas = gridDim.x, without_columns = ctas - kGemm2Ctas;
    const int slices = s.num_chunks * kSlices, full = slices / ctas, pairs = full / 2;
    int at = 2 * (taken * ctas + block);
    t.width = 2;
    if (taken >= pairs) {
      const int more = taken - pairs - full % 2;
      // in gemm2 a segment takes as long as kInter / kHidden of a unit
      const int spare = max(1, (s.num_chunks / kChunkSplits - 2) * (kColumnTile * kInter) / (2 * kSliceColumns * kHidden));
      const int one_more = max(0, slices % ctas - without_columns * spare);  // blocks with columns
      t.width = 1;
      if (more < 0) at = 2 * pairs * ctas + block;
      else if (block >= kGemm2Ctas) at = full * ctas + one_more + more * without_columns + block - kGemm2Ctas;
      else at = more == 0 && block < one_more ? full * ctas + block : slices;
      if (at >= slices) return false;
    }
    t.turn = taken++;
    t.number = at / kSlices;
    t.slice = at % kSlices;
    t.chunk = s.chunk[t.number];
    return true;
  }
};

cudaError_t prepare_fused_layer();  // once for each device
cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);
