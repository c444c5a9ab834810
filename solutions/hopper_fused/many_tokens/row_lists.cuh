// many_rows: writes down whose x each row has, which gemm1 fetches itself, and puts the rows' scales together.
#pragma once
#include "many_tokens.cuh"

// Where the experts' rows are: the first, and how many there are with those that fill up.
struct ExpertRows {
  int first[kPaddedLocal], rows[kPaddedLocal];
};

constexpr int kScalesPerLane = (kKSteps1 + 31) / 32;

// For one warp: token t's scales, a few a lane, or zeros without a token.
__device__ __forceinline__ void read_scales(const ManyArgs& args, int t, float (&scale)[kScalesPerLane]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kScalesPerLane; i++)
    scale[i] = t >= 0 && 32 * i + lane < kKSteps1 ? __ldg(args.x_scale + (size_t)(32 * i + lane) * args.num_tokens + t) : 0.0f;
}

// For one warp: the token and its scales to its rows of the experts 32 word + e for e in `experts`; lane e knows that one's.
__device__ __forceinline__ void place_row(const ManyArgs& args, const ExpertRows& expert_rows, int t,
                                          const float (&scale)[kScalesPerLane], int word, unsigned experts, int row) {
  const int lane = threadIdx.x % 32;
  if (experts >> lane & 1) args.row_token[row] = max(t, 0);
  for (unsigned left = experts; left; left &= left - 1) {
    const int e = __ffs(left) - 1, first = expert_rows.first[32 * word + e], rows = expert_rows.rows[32 * word + e];
    const int r = __shfl_sync(0xffffffffu, row, e) - first;
#pragma unroll
    for (int k = 0; k < kScalesPerLane; k++)
      if (32 * k + lane < kKSteps1) args.gathered_scale[(size_t)first * kKSteps1 + (32 * k + lane) * rows + r] = scale[k];
  }
}
