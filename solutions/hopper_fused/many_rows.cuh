// many_rows: writes down whose x each row has, which gemm1 fetches itself, and puts the rows' scales together.
#pragma once
#include "many_layer.cuh"

// Where the experts' rows are: the first, and how many there are with those that fill up.
struct Places {
  int first[kPadded], rows[kPadded];
};

constexpr int kScalesALane = (kK1 + 31) / 32;

// For one warp: token t's scales, a few a lane, or zeros without a token.
__device__ __forceinline__ void read_scales(const ManyArgs& a, int t, float (&scale)[kScalesALane]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kScalesALane; i++)
    scale[i] = t >= 0 && 32 * i + lane < kK1 ? __ldg(a.x_scale + (size_t)(32 * i + lane) * a.num_tokens + t) : 0.0f;
}

// For one warp: the token and its scales to its rows of the experts 32 word + e for e in `experts`; lane e knows that one's.
__device__ __forceinline__ void place_row(const ManyArgs& a, const Places& places, int t,
                                          const float (&scale)[kScalesALane], int word, unsigned experts, int row) {
  const int lane = threadIdx.x % 32;
  if (experts >> lane & 1) a.row_token[row] = max(t, 0);
  for (unsigned left = experts; left; left &= left - 1) {
    const int e = __ffs(left) - 1, first = places.first[32 * word + e], rows = places.rows[32 * word + e];
    const int r = __shfl_sync(0xffffffffu, row, e) - first;
#pragma unroll
    for (int k = 0; k < kScalesALane; k++)
      if (32 * k + lane < kK1) a.gathered_scale[(size_t)first * kK1 + (32 * k + lane) * rows + r] = scale[k];
  }
}
