// many_combine: out[token] = the sum of the token's rows of y, in order of expert. A block a token; tokens without rows
// were cleared beside gemm1.
#include "many_y.cuh"

constexpr int kCombineThreads = 224;  // 7168 columns are four vectors of eight for each

__global__ void __launch_bounds__(kCombineThreads) many_combine(const __grid_constant__ ManyArgs a) {
  constexpr int kAtOnce = 4;
  for (int t = blockIdx.x; t < a.num_tokens; t += gridDim.x) {
    const int rows = __popc(__ldg(a.mask + t));
    if (rows == 0) continue;
    const int4* row_of = reinterpret_cast<const int4*>(a.row_of + (size_t)t * kTopK);
    const int4 low = __ldg(row_of), high = __ldg(row_of + 1);
    const int row[kTopK] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    for (int column = threadIdx.x * 8; column < a.y_columns; column += kCombineThreads * 8) {
      float sum[8] = {};
#pragma unroll
      for (int i = 0; i < kTopK; i += kAtOnce) {
        if (i >= rows) break;
        uint4 v[kAtOnce];
#pragma unroll
        for (int r = 0; r < kAtOnce; r++)
          v[r] = i + r < rows ? __ldcs(reinterpret_cast<const uint4*>(a.y + (size_t)row[i + r] * a.y_columns + column))
                              : make_uint4(0, 0, 0, 0);
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
  many_combine<<<min(a.num_tokens, 8 * blocks), kCombineThreads, 0, stream>>>(a);
  return cudaGetLastError();
}
