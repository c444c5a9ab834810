// combine: output[token] = the sum of the token's rows of y, added in fp32 in order of expert, and rounded to bf16. y
// is bf16, or scaled fp16 where h is hi and lo.
//
// CTAs are persistent. Each has a token at a time, or, with few tokens, a part of a token's columns. There is no shared
// memory and no barrier: a thread sums eight columns of all rows by 16-byte loads, then its next eight. The next
// token's list of rows is loaded while this token is summed. grouped_gemm2 has zeroed the output of tokens without
// rows.
#include <cstdint>

#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

static_assert(kMaxTokenRows <= 16, "a token's list of rows stays in registers");

// kCtas: how many CTAs share a token.
template <int kHSplit, int kCtas>
__global__ void __launch_bounds__(Grouped::kCombineThreads, Grouped::kCombineCtas)
    combine(const __grid_constant__ GroupedArgs args) {
  constexpr int kAtOnce = Grouped::kCombineRowsAtOnce;
  constexpr int kListVectors = kMaxTokenRows / 4;  // int4s of a token's list of rows
  pdl_wait();
  pdl_launch_dependents();
  const int4* rows_of = reinterpret_cast<const int4*>(args.token_rows);
  const unsigned first = blockIdx.x / kCtas, part = blockIdx.x % kCtas, tokens_at_once = gridDim.x / kCtas;
  int4 next_rows[kListVectors];
#pragma unroll
  for (int i = 0; i < kListVectors; i++)
    next_rows[i] = first < args.num_tokens ? __ldg(rows_of + kListVectors * first + i) : make_int4(-1, -1, -1, -1);
  for (int t = first; t < args.num_tokens; t += tokens_at_once) {
    int row[kMaxTokenRows];
#pragma unroll
    for (int i = 0; i < kListVectors; i++) {
      row[4 * i] = next_rows[i].x, row[4 * i + 1] = next_rows[i].y;
      row[4 * i + 2] = next_rows[i].z, row[4 * i + 3] = next_rows[i].w;
    }
    const int next = t + tokens_at_once;
    if (next < args.num_tokens) {
#pragma unroll
      for (int i = 0; i < kListVectors; i++) next_rows[i] = __ldg(rows_of + kListVectors * next + i);
    }
    if (row[0] < 0) continue;
    const int columns = kPadsColumns ? min(args.y_columns, kHidden - args.first_column) : args.y_columns;
    for (int column = (part * Grouped::kCombineThreads + threadIdx.x) * 8; column < columns;
         column += kCtas * Grouped::kCombineThreads * 8) {
      float sum[8] = {};
#pragma unroll
      for (int i = 0; i < kMaxTokenRows; i += kAtOnce) {
        if (row[i] < 0) break;
        uint4 v[kAtOnce];
        float scale[kAtOnce];
#pragma unroll
        for (int r = 0; r < kAtOnce; r++) {
          if constexpr (kHSplit == 2)
            scale[r] = row[i + r] < 0
                           ? 0.0f
                           : __ldcs(args.y_scale + (size_t)row[i + r] * (args.y_columns / kBlockK) + column / kBlockK);
          v[r] = row[i + r] < 0
                     ? make_uint4(0, 0, 0, 0)
                     : __ldcs(reinterpret_cast<const uint4*>(args.y + (size_t)row[i + r] * args.y_columns + column));
        }
#pragma unroll
        for (int r = 0; r < kAtOnce; r++) {
          const unsigned pairs[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
#pragma unroll
          for (int p = 0; p < 4; p++) {
            if constexpr (kHSplit == 2) {
              const float2 y = __half22float2(*reinterpret_cast<const __half2*>(&pairs[p]));
              sum[2 * p] += y.x * scale[r];
              sum[2 * p + 1] += y.y * scale[r];
            } else {
              sum[2 * p] += unpack_bf16(pairs[p]).x;
              sum[2 * p + 1] += unpack_bf16(pairs[p]).y;
            }
          }
        }
      }
      __stcs(reinterpret_cast<uint4*>(args.output + (size_t)t * kHidden + args.first_column + column),
             make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                        pack_bf16(sum[6], sum[7])));
    }
  }
}

cudaError_t launch_combine(const GroupedArgs& args, int h_split, int sms, cudaStream_t stream) {
  const int at_most = Grouped::kCombineWaves * Grouped::kCombineCtas * sms;
  if (args.num_tokens <= sms)
    return launch_with_pdl(h_split == 1 ? combine<1, Grouped::kTokenCtas> : combine<2, Grouped::kTokenCtas>,
                           args.num_tokens * Grouped::kTokenCtas, Grouped::kCombineThreads, clusters_of(1), 0, stream,
                           args);
  return launch_with_pdl(h_split == 1 ? combine<1, 1> : combine<2, 1>, min(args.num_tokens, at_most),
                         Grouped::kCombineThreads, clusters_of(1), 0, stream, args);
}

}  // namespace hopper_fused
