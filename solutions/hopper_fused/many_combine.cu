// many_combine: out[token] = the sum of the token's rows of y, in order of expert. A block a token; many_gemm2 has
// cleared tokens without rows.
#include "many_y.cuh"

constexpr int kCombineThreads = 224;  // 7168 columns are four vectors of eight for each
constexpr int kCombineBlocks = 8;     // of a multiprocessor at once
constexpr int kCombineWaves = 4;      // so many times those in all: where one ends early, another begins

__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks) many_combine(const __grid_constant__ ManyArgs a) {
  constexpr int kAtOnce = 2;  // most tokens have no more rows here
  wait_for_previous();
  let_next_begin();
  const int4* rows_of = reinterpret_cast<const int4*>(a.row_of);
  const int4 none = make_int4(-1, -1, -1, -1);
  int4 low = none, high = none;
  if (blockIdx.x < a.num_tokens) low = __ldg(rows_of + 2 * blockIdx.x), high = __ldg(rows_of + 2 * blockIdx.x + 1);
  for (int t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
    const int row[kTopK] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const int next = t + gridDim.x;
    if (next < a.num_tokens) low = __ldg(rows_of + 2 * next), high = __ldg(rows_of + 2 * next + 1);
    if (row[0] < 0) continue;
    for (int column = threadIdx.x * 8; column < a.y_columns; column += kCombineThreads * 8) {
      float sum[8] = {};
#pragma unroll
      for (int i = 0; i < kTopK; i += kAtOnce) {
        if (row[i] < 0) break;
        uint4 v[kAtOnce];
#pragma unroll
        for (int r = 0; r < kAtOnce; r++)
          v[r] = row[i + r] < 0
                     ? make_uint4(0, 0, 0, 0)
                     : __ldcs(reinterpret_cast<const uint4*>(a.y + (size_t)row[i + r] * a.y_columns + column));
#pragma unroll
        for (int r = 0; r < kAtOnce; r++) {
          const unsigned pairs[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
#pragma unroll
          for (int p = 0; p < 4; p++) {
            sum[2 * p] += __uint_as_float(pairs[p] << 16);
            sum[2 * p + 1] += __uint_as_float(pairs[p] & 0xffff0000u);
          }
        }
      }
      __stcs(reinterpret_cast<uint4*>(a.output + (size_t)t * kHidden + a.first_column + column),
             make_uint4(pair_bf16(sum[0], sum[1]), pair_bf16(sum[2], sum[3]), pair_bf16(sum[4], sum[5]),
                        pair_bf16(sum[6], sum[7])));
    }
  }
}

cudaError_t launch_many_combine(const ManyArgs& a, int blocks, cudaStream_t stream) {
  const int at_most = kCombineWaves * kCombineBlocks * blocks;
  return launch_next(many_combine, min(a.num_tokens, at_most), kCombineThreads, 1, 0, stream, a);
}
