// stages: the arguments of the layer's stages, the scratch that they share, and the window, the rows that are in
// scratch at a time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cutlass_grouped/gemms/grouped_gemm.cuh"
#include "common/cuda/layer/layer.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/pipeline/threads.cuh"

constexpr int kChunk = kWarp;        // tokens that a CTA routes or permutes, one warp each
constexpr int kMaxTokens = 1 << 17;  // of a call
// Up to so many tokens permute also routes: every CTA routes all tokens, and keeps their weights in at most 32 KB of
// shared memory.
constexpr int kFewTokens = kNumLocalExperts <= 128   ? 64
                           : kNumLocalExperts <= 256 ? 32
                           : kNumLocalExperts <= 384 ? 16
                                                     : 8;
constexpr int kMaxTokenRows = kTopK < kNumLocalExperts ? kTopK : kNumLocalExperts;

struct Pair {  // a token and one of its local experts
  int row;     // in expert order, or -1 after the last one
  float weight;
};
struct ExpertRows {  // the rows of an expert that are in the window
  int first, rows;
};

// Bytes of scratch for one row. y lies over x, x_scale and g, which nobody needs by then.
constexpr size_t kRowBytesX = kHidden + kNumKBlocks1 * sizeof(float), kRowBytesY = kHidden * sizeof(uint16_t);
constexpr size_t kRowBytesG = std::max(2 * kIntermediate * sizeof(uint16_t), kRowBytesY - kRowBytesX);
constexpr size_t kRowBytes =
    sizeof(ExpertRows) + kRowBytesX + kRowBytesG + kIntermediate + kNumKBlocks2 * sizeof(float);
// Rows that are in scratch at once: as many as fit into these bytes, rounded down to a multiple of 65536, or of 16384
// where fewer than 65536 fit.
constexpr size_t kWindowBytes = (size_t)1160 << 20, kMostRows = kWindowBytes / kRowBytes;
constexpr int kWindow = kMostRows / (kMostRows < 65536 ? 16384 : 65536) * (kMostRows < 65536 ? 16384 : 65536);
static_assert(kWindow > 0, "scratch has room for a window");
static_assert((size_t)kMaxTokens * kMaxTokenRows < (size_t)1 << 31, "numbers of rows are ints");
constexpr size_t kTokenBytes = kNumLocalExperts * sizeof(float) + kTopK * sizeof(Pair) + kPaddedLocalExperts / 8;
static_assert(kWindowBytes + kMaxTokens * kTokenBytes < (size_t)3 << 29,
              "scratch is less than 1.5 GB beside the GEMMs' workspaces");

// Rows are in expert order, those of an expert in the order of tokens, without gaps. The host does not know how many
// rows there are, only that a token has at most kMaxTokenRows. Rows first_row to first_row + window - 1 are in scratch.
// Where more are possible, the stages run again for the next window, which is nearly always empty under expert
// parallelism.
struct Scratch {
  // Above kFewTokens: [chunks][kPaddedLocalExperts], bit t: token t of the chunk has a row of the expert
  uint32_t* column;
  float* weight;  // [T][kNumLocalExperts], where the bit is set; above kFewTokens
  Pair* pair;     // [T][kTopK], in order of experts
  int* num_rows;  // [2]: in the window; of all
  ExpertRows* expert_rows;  // [window], of the row's expert
  GroupTable gemm1, gemm2;
  void *workspace1, *workspace2;  // of the GEMMs
  uint8_t* x;        // [window][kHidden] fp8
  float* x_scale;    // an expert's [kNumKBlocks1][rows] (or [rows][kNumKBlocks1], see scales_by_row) after the other's
  uint16_t* g;       // [window][2 kIntermediate] bf16, up then gate
  uint8_t* h;        // [window][kIntermediate] fp8
  float* h_scale;    // an expert's [kNumKBlocks2][rows] after the other's
  uint16_t* y;       // [window][kHidden] bf16, over x, x_scale and g
};

// Returns the index, counted from the expert's first scale, of the scale of `row` and K step `k`, for an expert with
// `rows` rows of `steps` steps.
__device__ __forceinline__ size_t scale_at(int row, int k, int rows, int steps, bool by_row) {
  return by_row ? (size_t)row * steps + k : (size_t)k * rows + row;
}

struct Args : Layer {
  const uint8_t* w1;  // [E_local, 2 I, H] fp8
  const uint8_t* w2;  // [E_local, H, I] fp8
  Scratch scratch;
  int first_row, window;
  bool swap_ab1, swap_ab2, scales_by_row;  // what the two GEMMs want, see GroupedGemm
};
