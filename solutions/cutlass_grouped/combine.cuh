// combine: every token gathers its rows, weighs them and sums in fp32, in the order of experts.
//
// A gather and no atomics: the result is the same bit for bit in every run. A token without a row gets exact zeros.
#pragma once
#include <cuda_bf16.h>

#include "layer.cuh"
#include "swiglu_quant.cuh"

constexpr int kCombineThreads = 224, kCombinePieces = kHidden / 8;  // of 16 bytes
constexpr int kCombineBlocks = 6;  // at once on a multiprocessor
static_assert(kCombinePieces % kCombineThreads == 0, "every thread has as many pieces");

// Block (token, part), or fewer blocks that share the tokens. After the first window, output holds the sum of the windows
// before.
__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks) combine_kernel(const __grid_constant__ Args a) {
  constexpr int kAtOnce = 2;  // most tokens have no more rows here
  let_next_start();
  wait_for_previous();
  if (a.first_row > 0 && a.scratch.start[kLocal] == 0) return;  // an empty window
  for (int token = blockIdx.x; token < a.num_tokens; token += gridDim.x) {
    int row[kTopK];
    float weight[kTopK];
    bool any = false;
#pragma unroll
    for (int k = 0; k < kTopK; k++) {
      const int2 pair = *reinterpret_cast<const int2*>(a.scratch.pair + (size_t)token * kTopK + k);
      const int here = pair.x - a.first_row;
      row[k] = pair.x >= 0 && here >= 0 && here < a.window ? here : -1;
      weight[k] = __int_as_float(pair.y);
      any |= row[k] >= 0;
    }
    if (a.first_row > 0 && !any) continue;
    uint4* output = reinterpret_cast<uint4*>(a.output + (size_t)token * kHidden);
    for (int piece = blockIdx.y * kCombineThreads + threadIdx.x; piece < kCombinePieces;
         piece += gridDim.y * kCombineThreads) {
      float sum[8] = {};
      if (a.first_row > 0) {
        const uint4 before = output[piece];
        const uint32_t word[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
        for (int i = 0; i < 4; i++) sum[2 * i] = two_floats(word[i]).x, sum[2 * i + 1] = two_floats(word[i]).y;
      }
#pragma unroll
      for (int k = 0; k < kTopK; k += kAtOnce) {
        uint4 y[kAtOnce];
#pragma unroll
        for (int r = 0; r < kAtOnce; r++)
          if (row[k + r] >= 0)
            y[r] = __ldcs(reinterpret_cast<const uint4*>(a.scratch.y + (size_t)row[k + r] * kHidden) + piece);
#pragma unroll
        for (int r = 0; r < kAtOnce; r++) {
          if (row[k + r] < 0) continue;
          const uint32_t word[4] = {y[r].x, y[r].y, y[r].z, y[r].w};
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float2 v = two_floats(word[i]);
            sum[2 * i] += weight[k + r] * v.x;
            sum[2 * i + 1] += weight[k + r] * v.y;
          }
        }
      }
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
        word[i] = *reinterpret_cast<const uint32_t*>(&two);
      }
      output[piece] = make_uint4(word[0], word[1], word[2], word[3]);
    }
  }
}
