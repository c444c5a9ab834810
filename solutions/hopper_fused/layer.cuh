// layer: the layer's fixed sizes, what the kernel is given, and what lies where in shared memory.
#pragma once
#include <cstdint>
#include <cuda.h>

constexpr int kHidden = 7168, kInter = 2048, kExperts = 256, kLocal = 32, kTopK = 8;
constexpr int kBlock = 128;               // K and columns of a block scale
constexpr int kK1 = kHidden / kBlock;     // K steps of gemm1
constexpr int kK2 = kInter / kBlock;      // K steps of gemm2
constexpr int kUnit = 32;                 // columns of h that a warpgroup owns: 32 of up and 32 of gate make m64
constexpr int kUnits = kInter / kUnit;    // units of an expert; h has one scale a row and unit
constexpr int kColumns = 64;              // output columns of a block in gemm2
constexpr int kMaxTokens = 1024;          // of this kernel; above, the tensor cores bound the layer
constexpr int kChunk = 64;                // rows of an expert that are multiplied at once
constexpr int kMaxSegments = kLocal + kMaxTokens * kTopK / kChunk;
constexpr int kFewTokens = 12;            // up to here every block routes all tokens itself, one a warp
constexpr int kSmemOutTokens = 64;        // up to here gemm2 sums in shared memory, above in global
constexpr int kOutPitch = kColumns + 4;   // floats; 4 keeps the eight lanes of a row apart in the banks

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2 * kWarpgroup;
constexpr int kThreads = kConsumers + kWarpgroup;

constexpr int kStages = 8;
constexpr int kUnitBytes = 2 * kUnit * kBlock;   // weights of a unit for one K step
constexpr int kSlotW = 2 * kUnitBytes;
constexpr int kSlot = kSlotW + kChunk * kBlock;  // gemm2: 64 weight rows, then 64 rows of h in two terms
constexpr int kScales = kChunk * 4 + 4;          // floats of a slot's scales

// Global scratch, reused by later calls on the same stream. `counters` are zero before and after each launch.
struct Scratch {
  unsigned counters[32];                       // 0: routed, 1: h written, 2: finished
  uint32_t mask[kMaxTokens];                   // bit e: the token has a row of local expert e
  float weight[kMaxTokens][kLocal];            // routing weight, where the bit is set
  float out[kMaxTokens][kHidden];              // gemm2's sums, T > kSmemOutTokens
  float h_scale[kMaxTokens * kTopK + 8][kUnits];         // times the routing weight
  uint8_t h[kMaxTokens * kTopK + 8][2][kInter];          // q(h) and q(h - q(h))
};

struct Args {
  const float* logits;          // [T, 256]
  const uint16_t* bias;         // [256] bf16
  const float* x_scale;         // [56, T]
  const float* w1_scale;        // [32, 32, 56]
  const float* w2_scale;        // [32, 56, 16]
  uint16_t* output;             // [T, 7168] bf16
  Scratch* scratch;
  int num_tokens;
  int local_expert_offset;
  float routed_scaling_factor;
};

struct Maps {
  CUtensorMap x;   // [T, 7168], box 1 x 128
  CUtensorMap w1;  // [32][256 groups][up, gate][8 rows][7168], box 4 groups: the 64 rows of a unit
  CUtensorMap w2;  // [32 * 7168, 2048], box 64 x 128
  CUtensorMap h;   // [rows][2 terms][2048], box 8 rows x 2 terms x 128
};

struct Segment {  // up to kChunk rows of one expert
  uint16_t expert, rows;
  uint32_t first_row;
};

struct Smem {
  uint8_t ring[kStages][kSlot];  // 1024-byte aligned, as the 128-byte swizzle wants
  float scales[kStages][kScales];
  union {
    struct {  // T <= kSmemOutTokens
      float out[kSmemOutTokens][kOutPitch];  // before gemm2: where two warpgroups add their halves of K
      uint16_t token[kSmemOutTokens * kTopK];
      uint32_t mask[kSmemOutTokens];
      float weight[kFewTokens][kLocal];
    } few;
    struct {
      uint16_t token[kMaxTokens * kTopK];
      uint32_t mask[kMaxTokens];
    } many;
  } rows;
  float amax[2][2][4][kChunk];  // tile parity, warpgroup, warp, row
  Segment segment[kMaxSegments];
  int count[kLocal];
  int first_row[kLocal];
  int num_segments;
  uint64_t full[kStages], empty[kStages];
};

// Position in the ring, counted alike by whoever fills and whoever drains.
struct Ring {
  int step = 0;
  __device__ int slot() const { return step % kStages; }
  __device__ int phase() const { return step / kStages & 1; }
};

// gemm1's work is the units of all segments in one line, cut into gridDim.x equal pieces. A tile is two
// neighbouring units of one segment, or one where the piece is odd.
struct Tile {
  int expert, rows, first_row, unit, width;
};
struct Tiles {
  const Smem& s;
  int next, end;
  __device__ Tiles(const Smem& smem) : s(smem) {
    int units = smem.num_segments * kUnits;
    next = (int)((long long)units * blockIdx.x / gridDim.x);
    end = (int)((long long)units * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ bool take(Tile& t) {
    if (next >= end) return false;
    const Segment seg = s.segment[next / kUnits];
    t.expert = seg.expert;
    t.rows = seg.rows;
    t.first_row = seg.first_row;
    t.unit = next % kUnits;
    t.width = t.unit % 2 == 0 && next + 1 < end ? 2 : 1;
    next += t.width;
    return true;
  }
};
