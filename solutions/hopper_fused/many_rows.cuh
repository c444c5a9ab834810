// many_rows: writes down whose x each row has, which gemm1 fetches itself, and puts the rows' scales together.
#pragma once
#include "many_layer.cuh"

// Where the experts' rows are: the first, and how many there are with those that fill up.
struct Places {
  int first[kLocal], rows[kLocal];
};

// For one warp: token t's scales, or zeros without a token, to the rows of the experts in `experts`; lane e knows expert e's.
__device__ __forceinline__ void place_row(const ManyArgs& a, const Places& places, int t, unsigned experts, int row) {
  const int lane = threadIdx.x % 32;
  float scale[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    scale[i] = t >= 0 && 32 * i + lane < kK1 ? __ldg(a.x_scale + (size_t)(32 * i + lane) * a.num_tokens + t) : 0.0f;
  if (experts >> lane & 1) a.row_token[row] = max(t, 0);
  for (unsigned left = experts; left; left &= left - 1) {
    const int e = __ffs(left) - 1, first = places.first[e], rows = places.rows[e];
    const int r = __shfl_sync(0xffffffffu, row, e) - first;
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (32 * k + lane < kK1) a.gathered_scale[(size_t)first * kK1 + (32 * k + lane) * rows + r] = scale[k];
  }
}
