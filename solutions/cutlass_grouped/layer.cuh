// layer: the layer's fixed sizes, what its stages are given, and where they leave their results.
#pragma once
#include <cstdint>

#include "grouped_gemm.cuh"

constexpr int kHidden = 7168, kInter = 2048, kExperts = 256, kLocal = 32, kTopK = 8;
constexpr int kBlock = 128;            // columns of a block scale
constexpr int kK1 = kHidden / kBlock;  // scales of a row of x
constexpr int kK2 = kInter / kBlock;   // scales of a row of h
constexpr int kChunk = 32;             // tokens that a thread block routes or permutes, a warp each
constexpr int kFewTokens = 64;         // up to here permute routes by itself, every block all tokens
constexpr int kWindow = 65536;         // rows that are in scratch at once
static_assert(kLocal == kGroups && kLocal == 32, "a warp has a lane for each local expert, a word a bit");

struct Pair {  // a token's share in a local expert
  int row;     // in the order of experts, or -1 after the last one
  float weight;
};

// Rows are in the order of experts, those of one expert in the order of tokens, without gaps. The host does not know
// how many there are, only that a token has eight at most. Rows first_row .. first_row + window of that order are in
// scratch; where more are possible the stages run again for the next window, which is nearly always empty.
struct Scratch {
  uint32_t* column;  // [chunks][kLocal], bit t: token t of the chunk has a row of the expert; above kFewTokens
  float* weight;     // [T][kLocal], where the bit is set; above kFewTokens
  Pair* pair;        // [T][kTopK], by expert
  int* start;        // [kLocal + 2], first row of each expert in the window, then the window's rows, then all rows
  GroupTable *gemm1, *gemm2;
  void *workspace1, *workspace2;  // of the products
  uint8_t* x;        // [window][kHidden] fp8
  float* x_scale;    // an expert's [kK1][rows] (or [rows][kK1], see scales_by_row) after the other's
  uint16_t* g;       // [window][2 kInter] bf16, up then gate
  uint8_t* h;        // [window][kInter] fp8
  float* h_scale;    // an expert's [kK2][rows] after the other's
  uint16_t* y;       // [window][kHidden] bf16, over x, x_scale and g, which nobody needs by then
};

// Where the scale of `row` and block `k` of an expert's `rows` rows of `blocks` blocks is, from that expert's first.
__device__ __forceinline__ size_t scale_at(int row, int k, int rows, int blocks, bool by_row) {
  return by_row ? (size_t)row * blocks + k : (size_t)k * rows + row;
}

// What the layer is given, but for the weights, which only the products read.
struct Layer {
  const float* logits;          // [T, 256]
  const uint16_t* bias;         // [256] bf16
  const uint8_t* x;             // [T, 7168] fp8
  const float* x_scale;         // [56, T]
  const float* w1_scale;        // [32, 32, 56]
  const float* w2_scale;        // [32, 56, 16]
  uint16_t* output;             // [T, 7168] bf16
  int num_tokens;
  int local_expert_offset;
  float routed_scaling_factor;
};

struct Args : Layer {
  const uint8_t* w1;            // [32, 4096, 7168] fp8
  const uint8_t* w2;            // [32, 7168, 2048] fp8
  Scratch scratch;
  int first_row, window;
  bool weights_first1, weights_first2, scales_by_row;  // what the two products want, see GroupedGemm
};
