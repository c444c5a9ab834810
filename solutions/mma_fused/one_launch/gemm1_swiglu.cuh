// gemm1_swiglu: G = W13 . x^T for this CTA's slices, h = silu(gate) * up times the routing weight, in fp16 with a power
// of two for each row and slice.
//
// Of each tile of 16 weight rows eight are of W13's first half and eight of the second, of the same columns of h, so
// the lane that has a sum of up has its gate's, too. interface.cuh says which half is up.
#pragma once
#include "multiply.cuh"
#include "numerics.cuh"
#include "sum_over_warps.cuh"
#include "weights.cuh"

// Scales of W13 for this lane's share of the warp's K steps: step warp + kWarps * lane. They come from memory, so a
// warp reads all that it needs of a slice at once, and prefetches the next slice's to L2.
struct HalfScales {
  const float *first, *second;
  bool exist;
  __device__ HalfScales(const FusedArgs& args, int expert, int slice, int warp, int lane) {
    const int block = (expert * 2 * kInter + slice * kSliceColumns) / kBlockK, k = warp + kWarps * lane;
    exist = k < kKSteps1;
    first = args.w1_scale + block * kKSteps1 + k;
    second = first + kInter / kBlockK * kKSteps1;
  }
  __device__ void prefetch() const {
    if (exist) prefetch_l2(first), prefetch_l2(second);
  }
};
static_assert(kKSteps1 <= kWarps * kWarp && kKSteps2 <= kWarps * kWarp, "a lane has the scales of one K step");

// Sums over this warp's K steps of slice `slice`, for up to 8 kTiles rows of the chunk.
template <int kTiles>
__device__ __forceinline__ void gemm1_slice(const Smem& s, const FusedArgs& args, WeightStream& weights,
                                            const Chunk& chunk, int slice, float (&acc)[kTiles][kMTiles][4]) {
  const int lane = weights.lane, g = lane / 4, t = lane % 4;
  constexpr float kUnpackScales = kUnpackScale * kUnpackScale;  // both operands are unpacked
  const HalfScales scales(args, chunk.expert, slice, weights.warp, lane);
  const float lane_first = scales.exist ? kUnpackScales * load_input_float(scales.first) : 0.0f;
  const float lane_second = scales.exist ? kUnpackScales * load_input_float(scales.second) : 0.0f;
  int token[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; n++)  // padding repeats the last row; its sums go nowhere
    token[n] = s.token[chunk.first_row + min(kMmaN * n + g, chunk.rows - 1)];

  // Of x a lane loads the pieces for both halves of a unit at once, or one after the other where registers are short.
  constexpr int kPieces = kTiles <= 2 ? 2 : 1, kCount = kTilesAtOnce<kTiles>;
  uint4 x[kTiles][kPieces];
  const auto load_x = [&](int k, int first) {
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
#pragma unroll
      for (int i = 0; i < kPieces; i++)
        x[n][i] = load_input(args.x + token[n] * kHidden + k * kBlockK + 32 * t + 16 * (first + i));
    }
  };
  for (int k = weights.warp, step = 0; k < kKSteps1; k += kWarps, step++) {
    load_x(k, 0);
    float x_scale[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; n++)
      x_scale[n] = load_input_float(args.x_scale + x_scale_index(k, token[n], args.num_tokens));

    const uint8_t* unit = weights.wait();
    const float w_first = __shfl_sync(kFullWarp, lane_first, step);
    const float w_second = __shfl_sync(kFullWarp, lane_second, step);
#pragma unroll (kTiles <= 2 ? 2 : 1)  // unrolled, the halves would share registers that there are not
    for (int half = 0; half < 2; half++) {
      if (half == 1 && kPieces == 1) load_x(k, 1);
#pragma unroll
      for (int m = 0; m < kMTiles; m += kCount) {
        WeightPiece<kCount> w;
        read_weights(w, unit, half, m);
        if (half == 1 && m + kCount == kMTiles) weights.advance();
#pragma unroll
        for (int n = 0; n < kTiles; n++) {
          RowPiece rows;
#pragma unroll
          for (int i = 0; i < 4; i++)
            unpack(word_of(x[n][kPieces == 1 ? 0 : half], i), rows.word[i][0], rows.word[i][1]);
          // the scales of rows 2 t and 2 t + 1 are with lanes whose g is that
          const float x_even = __shfl_sync(kFullWarp, x_scale[n], 8 * t);
          const float x_odd = __shfl_sync(kFullWarp, x_scale[n], 8 * t + 4);
          const float scale[4] = {x_even * w_first, x_odd * w_first, x_even * w_second, x_odd * w_second};
          multiply(acc[n], m, w, rows, scale);
        }
      }
    }
  }
}

// SwiGLU and the store of h for one tile of 8 rows. sum: what a lane of warps 0 to 3 has of 16 weight rows: of column
// 8 warp + g of the slice the first half's sums of rows 2 t, 2 t + 1 and then the second's. For warps 0 to 3.
__device__ __forceinline__ void store_h(Smem& s, const FusedArgs& args, const Chunk& chunk, int slice, int tile,
                                        const float4& sum, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  const int first = chunk.first_row + kMmaN * tile;
  float h[2] = {swiglu_of_halves(sum.x, sum.z), swiglu_of_halves(sum.y, sum.w)};
#pragma unroll
  for (int p = 0; p < 2; p++) {
    // padding repeats the last row here, too
    const int row = min(first + 2 * t + p, (int)chunk.first_row + chunk.rows - 1);
    h[p] *= args.num_tokens <= kRouteAllTokens ? s.row_weight[row]
                                               : __ldcg(&args.scratch->weight[s.token[row]][chunk.expert]);
    float amax = fabsf(h[p]);
#pragma unroll
    for (int d = 4; d < kWarp; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, d));  // lanes of this row
    if (g == 0) s.amax[warp][2 * t + p] = amax;
  }
  named_barrier_sync(kBarAmax, kMTiles * kWarp);
#pragma unroll
  for (int p = 0; p < 2; p++) {
    const int r = 2 * t + p;
    const float amax = fmaxf(fmaxf(s.amax[0][r], s.amax[1][r]), fmaxf(s.amax[2][r], s.amax[3][r]));
    const float scale = fp16_scale(amax);
    // column 32 t' + 8 j + g of K step slice / 4 (see FusedScratch), where t' = slice % 4 and j = warp
    const int piece = 4 * warp + slice % kSlicesPerStep;
    args.scratch->h[first + r][slice / kSlicesPerStep * kBlockK + 8 * piece + g] =
        half_bits(h[p] * inverse_power_of_two(scale));
    if (warp == 0 && g == 0) args.scratch->h_scale[first + r][slice] = scale;
  }
}

template <int kTiles>
__device__ __forceinline__ void gemm1_swiglu_slice(Smem& s, const FusedArgs& args, WeightStream& weights,
                                                   const Chunk& chunk, int slice) {
  float acc[kTiles][kMTiles][4] = {};
  gemm1_slice<kTiles>(s, args, weights, chunk, slice, acc);
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
    if (kMmaN * n >= chunk.rows) break;
    const float4 sum = sum_over_warps(s, acc[n], weights.warp, weights.lane);
    if (weights.warp < kMTiles) store_h(s, args, chunk, slice, n, sum, weights.warp, weights.lane);
    __syncthreads();
  }
}

// All of this CTA's slices.
__device__ __forceinline__ void gemm1_swiglu(Smem& s, const FusedArgs& args, WeightStream& weights) {
  for (int item = 0, at; (at = s.division.slice(item)) >= 0; item++) {
    const Chunk chunk = s.chunk[at / kSlices];
    const int slice = at % kSlices, next = s.division.slice(item + 1);
    if (next >= 0)
      HalfScales(args, s.chunk[next / kSlices].expert, next % kSlices, weights.warp, weights.lane).prefetch();
    if (chunk.rows <= 8) gemm1_swiglu_slice<1>(s, args, weights, chunk, slice);
    else if (chunk.rows <= 16) gemm1_swiglu_slice<2>(s, args, weights, chunk, slice);
    else gemm1_swiglu_slice<3>(s, args, weights, chunk, slice);
    // The barrier at the slice's end orders all stores of h before this release. The last warp does not sum up.
    if (threadIdx.x == kThreads - 1) counter_arrive(&args.scratch->slices_stored[at / kSlices]);
  }
}
