// gemm1_swiglu: G = W13 . x^T for this CTA's slices, h = silu(gate) * up times the routing weight, in fp16 with a power
// of two for each row and slice.
//
// Of each tile of 16 weight rows eight are of W13's first half and eight of the second, of the same columns of h, so
// the lane that has a sum of up has its gate's, too. interface.cuh says which half is up.
#pragma once
#include "arguments.cuh"
#include "barrier.cuh"
#include "counter.cuh"
#include "fp16.cuh"
#include "ld_global.cuh"
#include "multiply.cuh"
#include "numerics.cuh"
#include "sum_over_warps.cuh"
#include "weights.cuh"

// A slice of h, or half of it: 64 weight rows, and the chunk whose rows they multiply.
struct Slice : Piece {
  Chunk chunk;
  int slice;
  __device__ Slice(const Smem& s, const Piece& piece)
      : Piece(piece), chunk(s.chunk[piece.at / kSlices]), slice(piece.at % kSlices) {}
};

// Of a tile of 8 rows what a lane multiplies with a unit: of row g of x 16 bytes for each half, and their scale.
struct XTile {
  uint4 x[2];
  float scale;

  __device__ void load(const Smem& s, const FusedArgs& args, const Chunk& chunk, int tile, int k) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const int token = s.token[chunk.first_row + min(kMmaN * tile + g, chunk.rows - 1)];  // padding: goes nowhere
    const uint8_t* from = args.x + token * kHidden + k * kBlockK + 32 * t;
    x[0] = ld_global_v4(from), x[1] = ld_global_v4(from + 16);
    scale = ld_global_f32(args.x_scale + x_scale_index(k, token, args.num_tokens));
  }
};

// What a lane multiplies next, in registers. Its loads queue behind the weights and take longer than a unit's
// multiplications, so they are issued a unit before, past the end of a slice, too. They go to registers of their own,
// which are copied when the unit is over: loaded in place, the compiler moved the load up and waited in mid-unit.
struct XAhead {
  XTile tile[kMaxTiles];
  // W13's scales of the next slice, for this lane's share of the warp's K steps: step warp + kWarps * lane.
  float w_first = 0.0f, w_second = 0.0f;

  // The first unit of a piece, for the tiles from `first` on.
  __device__ void load_tiles(const Smem& s, const FusedArgs& args, const Slice& of, int warp, int first) {
    const int k = of.first + warp;
#pragma unroll
    for (int n = 0; n < kMaxTiles; n++)
      if (n >= first && kMmaN * n < of.chunk.rows && k < kNumKBlocks1) tile[n].load(s, args, of.chunk, n, k);
  }
  __device__ void load_weight_scales(const FusedArgs& args, const Slice& of, int warp, int lane) {
    const int block = (of.chunk.expert * 2 * kIntermediate + of.slice * kSliceColumns) / kBlockK, k = warp + kWarps * lane;
    if (k >= kNumKBlocks1) return;
    const float* first = args.w1_scale + block * kNumKBlocks1 + k;
    w_first = ld_global_f32(first), w_second = ld_global_f32(first + kIntermediate / kBlockK * kNumKBlocks1);
  }
};
static_assert(kNumKBlocks1 <= kWarps * kWarp && kNumKBlocks2 <= kWarps * kWarp, "a lane has the scales of one K step");

// Sums over this warp's K steps of a piece, for up to 8 kTiles rows of its chunk. `ahead` has the piece's first unit
// and the slice's weight scales, and afterwards those of the next.
template <int kTiles>
__device__ __forceinline__ void gemm1_slice(const Smem& s, const FusedArgs& args, WeightStream& weights,
                                            const Slice& of, const Slice& next, XAhead& ahead,
                                            float (&acc)[kTiles][kMTiles][4]) {
  const int warp = weights.warp, lane = weights.lane, t = lane % 4;
  constexpr float kUnpackScales = kUnpackScale * kUnpackScale;  // both operands are unpacked
  const float lane_first = kUnpackScales * ahead.w_first, lane_second = kUnpackScales * ahead.w_second;
  ahead.load_weight_scales(args, next, warp, lane);
  for (int k = of.first + warp; k < of.end; k += kWarps) {
    const bool last = k + kWarps >= of.end;
    const Chunk chunk_ahead = last ? next.chunk : of.chunk;
    XTile tile_ahead[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; n++) tile_ahead[n].load(s, args, chunk_ahead, n, last ? next.first + warp : k + kWarps);

    const uint8_t* unit = weights.wait();
    const float w_first = __shfl_sync(kFullWarp, lane_first, k / kWarps);
    const float w_second = __shfl_sync(kFullWarp, lane_second, k / kWarps);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      WeightPiece w;
      read_weights(w, unit, half);
      if (half == 1) weights.advance();
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        RowPiece rows;
#pragma unroll
        for (int i = 0; i < 4; i++) unpack(word_of(ahead.tile[n].x[half], i), rows.word[i][0], rows.word[i][1]);
        // the scales of rows 2 t and 2 t + 1 are with lanes whose g is that
        const float x_even = __shfl_sync(kFullWarp, ahead.tile[n].scale, 8 * t);
        const float x_odd = __shfl_sync(kFullWarp, ahead.tile[n].scale, 8 * t + 4);
        const float scale[4] = {x_even * w_first, x_odd * w_first, x_even * w_second, x_odd * w_second};
        multiply(acc[n], w, rows, scale);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; n++) ahead.tile[n] = tile_ahead[n];
  }
  ahead.load_tiles(s, args, next, warp, kTiles);
}

// SwiGLU and the store of h for the tile of 8 rows from `first` on; for warps 0 to 3. sum: what a lane has of 16 weight
// rows: of column 8 warp + g of the slice the first half's sums of rows 2 t, 2 t + 1 and then the second's. row_weight:
// of these rows.
__device__ __forceinline__ void store_h(Smem& s, const FusedArgs& args, int first, int slice, const float4& sum,
                                        const float (&row_weight)[2], int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  float h[2] = {swiglu_of_halves(sum.x, sum.z), swiglu_of_halves(sum.y, sum.w)};
#pragma unroll
  for (int p = 0; p < 2; p++) {
    h[p] *= row_weight[p];
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
        cvt_f32_to_f16(h[p] * inverse_power_of_two(scale));
    if (warp == 0 && g == 0) args.scratch->h_scale[first + r][slice] = scale;
  }
}

template <int kTiles>
__device__ __forceinline__ void gemm1_swiglu_slice(Smem& s, const FusedArgs& args, WeightStream& weights,
                                                   const Slice& of, const Slice& next, XAhead& ahead) {
  const int warp = weights.warp, lane = weights.lane;
  const Chunk& chunk = of.chunk;
  float row_weight[kTiles][2] = {};  // for warps 0 to 3: of rows 2 t and 2 t + 1 of each tile
  if (warp < kMTiles) {
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
#pragma unroll
      for (int p = 0; p < 2; p++) {
        // padding repeats the last row here, too
        const int row = chunk.first_row + min(kMmaN * n + lane % 4 * 2 + p, chunk.rows - 1);
        row_weight[n][p] = args.num_tokens <= kRouteAllTokens
                               ? s.row_weight[row]
                               : ld_global_cg_f32(&args.scratch->weight[s.token[row]][chunk.expert]);
      }
    }
  }
  float acc[kTiles][kMTiles][4] = {};
  gemm1_slice<kTiles>(s, args, weights, of, next, ahead, acc);
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
    if (kMmaN * n >= chunk.rows) break;
    float4 sum = sum_over_warps(s, acc[n], warp, lane);
    if (warp >= kMTiles) continue;
    if (of.is_first_half()) {
      __stcg(&args.scratch->first_half[s.division.cut][n][warp][lane], sum);
      continue;
    }
    if (of.is_second_half()) {
      counter_wait(&args.scratch->halves_stored[s.division.cut], 1);
      const float4 first = __ldcg(&args.scratch->first_half[s.division.cut][n][warp][lane]);
      sum = make_float4(first.x + sum.x, first.y + sum.y, first.z + sum.z, first.w + sum.w);
    }
    store_h(s, args, chunk.first_row + kMmaN * n, of.slice, sum, row_weight[n], warp, lane);
  }
}

// Signals that warps 0 to 3 have stored a piece. The last warp waits for them; where it is not one of them, they go on.
__device__ __forceinline__ void signal_piece(unsigned* stored, int warp, int lane) {
  constexpr int kSignal = kWarps - 1, kTogether = (kSignal < kMTiles ? kMTiles : kMTiles + 1) * kWarp;
  if (warp == kSignal) {
    named_barrier_sync(kBarStored, kTogether);
    if (lane == 0) counter_arrive(stored);
  } else if (warp < kMTiles) {
    named_barrier_arrive(kBarStored, kTogether);
  }
}

// All of this CTA's pieces.
__device__ __forceinline__ void gemm1_swiglu(Smem& s, const FusedArgs& args, WeightStream& weights) {
  XAhead ahead;
  Piece piece = s.division.piece(0);
  for (int item = 0; piece.at >= 0; item++) {
    const Piece next_piece = s.division.piece(item + 1);
    const Slice of(s, piece), next(s, next_piece.at >= 0 ? next_piece : piece);
    if (item == 0) {
      ahead.load_weight_scales(args, of, weights.warp, weights.lane);
      ahead.load_tiles(s, args, of, weights.warp, 0);
    }
    if (of.chunk.rows <= 8) gemm1_swiglu_slice<1>(s, args, weights, of, next, ahead);
    else gemm1_swiglu_slice<2>(s, args, weights, of, next, ahead);
    unsigned* stored = of.is_first_half() ? &args.scratch->halves_stored[s.division.cut]
                                          : &args.scratch->slices_stored[of.at / kSlices];
    signal_piece(stored, weights.warp, weights.lane);
    piece = next_piece;
  }
}
