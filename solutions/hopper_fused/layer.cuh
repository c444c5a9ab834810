// layer: the layer's fixed sizes, what the kernel is given, and what lies where in shared memory.
#pragma once
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>

#include "sizes.cuh"

constexpr int kBlock = 128;               // K and columns of a block scale
constexpr int kK1 = kHidden / kBlock;     // K steps of gemm1
constexpr int kK2 = kInter / kBlock;      // K steps of gemm2
constexpr int kUnit = 32;                 // columns of h that a warpgroup owns: 32 of up and 32 of gate make m64
constexpr int kUnits = kInter / kUnit;    // units of an expert; h has one scale a row and unit
constexpr int kColumns = 64;              // output columns of a block in gemm2
constexpr int kColumnBlocks = kHidden / kColumns;
constexpr int kLeastBlocks = 112;         // multiprocessors that are taken for granted
constexpr int kUsualBlocks = 132;         // those of the devices this is for
// Where columns alone would leave blocks idle in gemm2, several share a column block, each with every so manieth segment.
constexpr int kParts = kUsualBlocks / kColumnBlocks < 1 ? 1 : kUsualBlocks / kColumnBlocks;
constexpr int kGemm2Blocks = kColumnBlocks * kParts;  // blocks that take part in gemm2
constexpr int kMaxTokens = kLocal <= 32 ? 224 : 128;  // of this kernel; above, several kernels are faster
static_assert(kMaxTokens % 32 == 0, "masks lie 32 tokens together");
constexpr int kChunk = 64;                // rows of an expert that are multiplied at once
constexpr int kMostPicks = kMaxTokens * (kTopK < kLocal ? kTopK : kLocal);  // rows of all experts
constexpr int kMostExperts = kLocal < kMostPicks ? kLocal : kMostPicks;     // that have rows
constexpr int kMaxSegments = kMostExperts + kMostPicks / kChunk;
constexpr int kGroup = 8;                 // rows that lie together, an expert's last group filled up with zero rows
constexpr int kMaxRows = kMostPicks + kMostExperts * (kGroup - 1);
static_assert(kMaxRows < 0xffff && kMaxRows % kGroup == 0, "");
constexpr uint16_t kNoToken = 0xffff;     // of a row that fills a group up
constexpr int kFewTokens = 12;            // up to here every block routes all tokens itself, so that none waits for others
constexpr int kEvictFirstExperts = 8;     // with rows: up to here weights leave L2 first; above, they leave its order as it is
constexpr int kDirectTokens = 64;         // up to here a segment of one row is direct: each of its tiles copies the row itself
constexpr int kOutPitch = kColumns + 4;   // floats; 4 keeps the eight lanes of a row apart in the banks

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2 * kWarpgroup;
constexpr int kThreads = kConsumers + kWarpgroup;

constexpr int kStages = 6;  // of the ring
constexpr int kUnitBytes = 2 * kUnit * kBlock;   // weights of a unit for one K step
// A slot holds 16 KB of weights where that is possible, for the bytes in flight are what keeps memory busy:
//   gemm1, two units       two blocks of 64 weight rows, one K step; x
//   gemm1, one unit        one unit, two K steps, one a warpgroup ("split"), if x of both fits: rows <= 32
//   gemm2, rows <= 16      64 weight rows, two K steps, one a warpgroup; h of both
//   gemm2, rows  > 16      64 weight rows, one K step, the warpgroups take turns; h
constexpr int kSlotW = 2 * kUnitBytes;
constexpr int kSlot = kSlotW + kChunk * kBlock;
constexpr int kSplitRows1 = 32, kSplitRows2 = 16;
constexpr int kTile8 = kGroup * kBlock;     // bytes of a group's K step, swizzled as wgmma reads it
constexpr int kScales = kChunk * 4;         // floats of a slot's row scales

// Global scratch, reused by later calls on the same stream. What stands before `mask` is zero before and after each launch.
static_assert(kK1 % 4 == 0 && kK2 % 2 == 0, "gemm1 takes two steps at a time, and halves of them where K is split");
struct Scratch {
  unsigned counters[16];                       // see Counter
  unsigned activated[kMaxSegments];            // units of each segment whose h is there
  unsigned added[kColumnBlocks];               // where kParts > 1: blocks whose sums are in `partial`
  uint32_t mask[kMaxTokens * kWords];          // 32 tokens by 32 tokens: [word][32 tokens]; bit e: a row of local expert e
  float weight[kMaxTokens][kLocal];            // routing weight, where the bit is set
  alignas(16) float partial[kParts > 1 ? kParts : 0][kParts > 1 ? kMaxTokens : 1][kHidden];  // gemm2's sums
  // Rows of a segment together, K step by K step, so that what a step needs is one piece (see Segment).
  float x_scale[kMaxRows * kK1];               // K step: [group][8 rows]
  float h_scale[kMaxRows * kUnits];            // K step: [group][8 rows][4 units]; times the routing weight
  alignas(1024) uint8_t x[kMaxRows * kHidden]; // K step: [group][8 rows of 128, swizzled]
  uint8_t h[kMaxRows * kInter * 2];            // K step: [group][q(h), q(h - q(h))][8 rows of 128, swizzled]
};
enum Counter { kRouted, kGathered, kFinished };

// Offset of a row's byte in a group's K step: rows of 128 bytes, 16-byte pieces swizzled by the row's number.
__device__ __forceinline__ int swizzled(int row, int byte) {
  return row * kBlock + ((byte / 16 ^ row) * 16) + byte % 16;
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

struct Args : Layer {
  Scratch* scratch;
};

struct Maps {
  CUtensorMap w1;  // [E_local][I / 8 groups][up, gate][8 rows][H], box 4 groups: the 64 rows of a unit
  CUtensorMap w2;  // [E_local * H, I], box 64 x 128
};

struct Segment {  // up to kChunk rows of one expert
  uint16_t expert, rows;
  uint32_t first_row;  // a multiple of kGroup
  __device__ int groups() const { return (rows + kGroup - 1) / kGroup; }
  __device__ bool split() const { return rows <= kSplitRows2; }
  __device__ int steps() const { return split() ? kK2 / 2 : kK2; }
  // Its row needs no gathering and no wait for it.
  __device__ bool direct(int num_tokens) const { return rows == 1 && num_tokens <= kDirectTokens; }
  // where a K step's piece of each scratch array begins
  __device__ int x_at(int k) const { return first_row * kHidden + k * groups() * kTile8; }
  __device__ int x_scale_at(int k) const { return first_row * kK1 + k * groups() * kGroup; }
  __device__ int h_at(int k) const { return (first_row * kInter + k * groups() * kTile8) * 2; }
  __device__ int h_scale_at(int k) const { return first_row * kUnits + k * groups() * kGroup * 4; }
};

struct Few {  // what a block keeps to itself while tokens are few; gemm2's sums take its place
  float x_scale[kK1 * kDirectTokens];  // all of it, as in memory, for direct segments
  float weight[kFewTokens][kLocal];    // where every block routes all tokens
};

constexpr int kBehindSlots(int sums, int few) { return sums > few ? sums : few; }
// Bytes for slots, and behind them sums, or direct rows and what is few.
constexpr int kPool = (kStages * kSlot + kBehindSlots(kMaxTokens * kOutPitch * (int)sizeof(float),
                                                      2 * kHidden + kBlock + (int)sizeof(Few)) + 1023) / 1024 * 1024;

struct Smem {
  // The ring's slots from the front on, 1024-byte aligned as the swizzle wants, then the rows of direct segments; Few or
  // sums at the end.
  uint8_t pool[kPool];
  float scales[kStages][kScales];
  uint16_t token[kMaxRows];  // of each row, or kNoToken
  uint32_t mask[kMaxTokens * kWords];  // as in Scratch; then [32 tokens][kPadded experts]: which of the tokens have a row
  float amax[2][4][kChunk];  // warpgroup, warp, row
  float handover[4][kWarpgroup];  // sums that the second warpgroup hands to the first, where they split K
  Segment segment[kMaxSegments];
  uint16_t segment_of[kMaxRows / kGroup];  // of each group of rows
  int first_row[kPadded];
  int num_segments, num_rows;  // rows with those that fill groups up
  uint64_t full[kStages], empty[kStages];
  uint64_t handed, taken;               // sums lie in `handover`; they are read
  uint64_t added[2];                    // a warpgroup has added a segment's sums, now the other
  uint64_t direct_done, direct_passed;  // load_weights is through with a direct tile; load_activations knows

  __device__ uint8_t* slot(int i) { return pool + i * kSlot; }
  // Of the block's tiles in turn; a direct tile's row, all of it.
  __device__ uint8_t* direct_row(int turn) { return pool + kStages * kSlot + turn % 2 * kHidden; }
  // gemm2's sums: [num_tokens][kOutPitch]
  __device__ float* sums(int num_tokens) { return reinterpret_cast<float*>(pool + kPool) - num_tokens * kOutPitch; }
  // before gemm2
  __device__ Few& few() { return *reinterpret_cast<Few*>(pool + kPool - sizeof(Few)); }
};
static_assert(kStages * kSlot + 2 * kHidden + kBlock + sizeof(Few) <= kPool, "direct rows lie before what is few");
static_assert(kStages * kSlot + kMaxTokens * kOutPitch * sizeof(float) <= kPool, "and slots before sums");

enum NamedBarrier {
  kBarWarpgroup0 = 1,
  kBarWarpgroup1,
  kBarConsumers,
  kBarRowsRead,    // the tokens of this block's rows are in registers
  kBarUnitDone0,   // the first warpgroup has stored a unit of h; with a warp that tells the other blocks
  kBarUnitDone1    // and the second
};

// Position in a ring of slots, counted alike by whoever fills and whoever drains.
template <int kSlots>
struct Ring {
  int slot = 0, phase = 0;
  __device__ void next() {
    if (++slot == kSlots) slot = 0, phase ^= 1;
  }
  __device__ void pass(int steps) {  // as many at once
    slot += steps;
    phase ^= slot / kSlots & 1;
    slot %= kSlots;
  }
};

// gemm1's work is the units of all segments in one line, which the blocks take from the front, side by side: so h of the
// first segments is complete long before that of the last, and gemm2 begins with them while other blocks still do units.
// A tile is two neighbouring units of one segment, or one.
//
//   full rounds   every block as many units, two by two
//   what is left  less than a unit a block: goes to the blocks that have no part in gemm2, as many as they can do
//                 before the others come to gemm2's last segment; what is left then, one each, to the others
struct Tile {
  Segment segment;
  int number, unit, width;  // number: of the segment
  int turn;                 // among the block's tiles
  __device__ bool split() const { return width == 1 && segment.rows <= kSplitRows1; }
  __device__ int steps() const { return split() ? kK1 / 2 : kK1; }
};
struct Tiles {
  const Smem& s;
  int taken = 0;
  __device__ explicit Tiles(const Smem& smem) : s(smem) {}
  // This block's next tile; false when there is none.
  __device__ bool take(Tile& t) {
    const int block = blockIdx.x, blocks = gridDim.x, without_columns = blocks - kGemm2Blocks;
    const int units = s.num_segments * kUnits, full = units / blocks, pairs = full / 2;
    int at = 2 * (taken * blocks + block);
    t.width = 2;
    if (taken >= pairs) {
      const int more = taken - pairs - full % 2;
      // in gemm2 a segment takes as long as kInter / kHidden of a unit
      const int spare = max(1, (s.num_segments / kParts - 2) * (kColumns * kInter) / (2 * kUnit * kHidden));
      const int one_more = max(0, units % blocks - without_columns * spare);  // blocks with columns
      t.width = 1;
      if (more < 0) at = 2 * pairs * blocks + block;
      else if (block >= kGemm2Blocks) at = full * blocks + one_more + more * without_columns + block - kGemm2Blocks;
      else at = more == 0 && block < one_more ? full * blocks + block : units;
      if (at >= units) return false;
    }
    t.turn = taken++;
    t.number = at / kUnits;
    t.unit = at % kUnits;
    t.segment = s.segment[t.number];
    return true;
  }
};

cudaError_t prepare_fused_layer();  // once for each device
cudaError_t launch_fused_layer(const Maps& maps, const Args& args, int blocks, cudaStream_t stream);
