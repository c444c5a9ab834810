// combine: a token's output is the sum of its rows of y times their routing weights, in fp32, in the order of experts.
//
// CTA (token, part of the columns), or fewer CTAs that share the tokens. A thread sums one 16-byte vector of all of the
// token's rows, kRowsAtOnce loads in flight, then its next vector. No atomics, no shared memory, no barriers: the
// result is the same bit for bit in every run. A token without a row gets exact zeros. (hopper_fused has a combine of
// its own: its rows are weighed already, and there are no windows.)
#pragma once
#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "cutlass_grouped/stages.cuh"

constexpr int kCombineVectors = kHidden / 8;  // 16-byte vectors of a row of y
constexpr int most_threads(int vectors) {     // whole warps, up to 256 threads, that have equally many vectors each
  int threads = 256;
  while (vectors % threads != 0) threads -= kWarp;
  return threads;
}
constexpr int kCombineThreads = most_threads(kCombineVectors);
constexpr bool kManyRows = kTopK * kNumLocalExperts > 3 * kNumExperts;  // a token has more than three rows on average
constexpr int kRowsAtOnce = kManyRows ? 4 : 2;             // of a token, whose loads are in flight
constexpr int kCombineCtas = (kManyRows ? 1024 : 1344) / kCombineThreads;  // of an SM, by the registers they need

// After the first window, output holds the sum of the windows before.
__global__ void __launch_bounds__(kCombineThreads, kCombineCtas) combine_kernel(const __grid_constant__ Args args) {
  const Scratch& scratch = args.scratch;
  pdl_launch_dependents();
  pdl_wait();
  if (args.first_row > 0 && scratch.num_rows[0] == 0) return;  // an empty window
  for (int token = blockIdx.x; token < args.num_tokens; token += gridDim.x) {
    int row[kTopK];
    float weight[kTopK];
    bool any = false;
#pragma unroll
    for (int k = 0; k < kTopK; k++) {
      const int2 pair = *reinterpret_cast<const int2*>(scratch.pair + (size_t)token * kTopK + k);
      const int here = pair.x - args.first_row;
      row[k] = pair.x >= 0 && here >= 0 && here < args.window ? here : -1;
      weight[k] = __int_as_float(pair.y);
      any |= row[k] >= 0;
    }
    if (args.first_row > 0 && !any) continue;
    uint4* output = reinterpret_cast<uint4*>(args.output + (size_t)token * kHidden);
    for (int vector = blockIdx.y * kCombineThreads + threadIdx.x; vector < kCombineVectors;
         vector += gridDim.y * kCombineThreads) {
      float sum[8] = {};
      if (args.first_row > 0) {
        const uint4 before = output[vector];
        const uint32_t word[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
        for (int i = 0; i < 4; i++) sum[2 * i] = unpack_bf16(word[i]).x, sum[2 * i + 1] = unpack_bf16(word[i]).y;
      }
#pragma unroll
      for (int k = 0; k < kTopK; k += kRowsAtOnce) {
        uint4 y[kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; r++)
          if (k + r < kTopK && row[k + r] >= 0)
            y[r] = __ldcs(reinterpret_cast<const uint4*>(scratch.y + (size_t)row[k + r] * kHidden) + vector);
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; r++) {
          if (k + r >= kTopK || row[k + r] < 0) continue;
          const uint32_t word[4] = {y[r].x, y[r].y, y[r].z, y[r].w};
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float2 v = unpack_bf16(word[i]);
            sum[2 * i] += weight[k + r] * v.x;
            sum[2 * i + 1] += weight[k + r] * v.y;
          }
        }
      }
      output[vector] = make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                                  pack_bf16(sum[6], sum[7]));
    }
  }
}
