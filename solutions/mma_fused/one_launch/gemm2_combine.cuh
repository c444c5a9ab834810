// gemm2_combine: Y = W2 . h^T for this CTA's column tiles, chunk by chunk as h is complete, added to the tokens' sums.
//
// A column tile's sums lie in a slab of their own for each CTA that has the tile. A chunk has a token once, and chunks
// are separated by barriers, so plain loads and stores add to them, and the order of the sums is always the same.
#pragma once
#include "multiply.cuh"
#include "numerics.cuh"
#include "sum_over_warps.cuh"
#include "weights.cuh"

// For a whole warp: waits until h of chunk n is complete. Returns the first chunk after it that may not be.
__device__ __forceinline__ int wait_for_h(const unsigned* slices_stored, int n, int num_chunks) {
  const int mine = n + threadIdx.x % kWarp;
  unsigned missing;
  do {
    const bool there = mine >= num_chunks || load_acquire(slices_stored + mine) == kSlices;
    missing = __ballot_sync(kFullWarp, !there);
  } while (missing & 1);
  __syncwarp();
  return missing ? n + __ffs(missing) - 1 : n + kWarp;
}

// Of W2, for K step warp + kWarps * lane; null where there is no such step.
__device__ __forceinline__ const float* column_scale(const FusedArgs& args, int expert, int column_tile, int warp,
                                                     int lane) {
  const int block = (expert * kHidden + column_tile * kColumnTile) / kBlockK, k = warp + kWarps * lane;
  return k < kKSteps2 ? args.w2_scale + block * kKSteps2 + k : nullptr;
}

// Sums over this warp's K steps of 64 output columns, for up to 8 kTiles rows of the chunk.
template <int kTiles>
__device__ __forceinline__ void gemm2_tile(const FusedArgs& args, WeightStream& weights, const Chunk& chunk,
                                           int column_tile, float (&acc)[kTiles][kMTiles][4]) {
  const int lane = weights.lane, g = lane / 4, t = lane % 4;
  const float* scale_at = column_scale(args, chunk.expert, column_tile, weights.warp, lane);
  const float lane_scale = scale_at ? kUnpackScale * load_input_float(scale_at) : 0.0f;
  // Of h a lane loads the pieces for both halves of a unit at once, or one after the other where registers are short.
  constexpr int kPieces = kTiles <= 2 ? 4 : 2, kCount = kTilesAtOnce<kTiles>;
  const int last = (chunk.rows + kMmaN - 1) / kMmaN * kMmaN - 1;
  const auto row_of = [&](int n) { return chunk.first_row + min(kMmaN * n + g, last); };
  uint4 h[kTiles][kPieces];
  const auto load_h = [&](int k, int first) {
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      const uint16_t* from = args.scratch->h[row_of(n)] + k * kBlockK + 8 * t + 32 * first;
#pragma unroll
      for (int j = 0; j < kPieces; j++) h[n][j] = load_shared_by_ctas(from + 32 * j);
    }
  };
  for (int k = weights.warp, step = 0; k < kKSteps2; k += kWarps, step++) {
    load_h(k, 0);
    float h_scale[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; n++)
      h_scale[n] = load_shared_by_ctas_float(&args.scratch->h_scale[row_of(n)][k * kSlicesPerStep + t]);

    const uint8_t* unit = weights.wait();
    const float w_scale = __shfl_sync(kFullWarp, lane_scale, step);
    float largest[kTiles];    // scale of the row, of the four slices in the K step
    uint32_t relative[kTiles];  // this lane's slice's scale over that, as a pair of fp16
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      largest[n] = fmaxf(h_scale[n], __shfl_xor_sync(kFullWarp, h_scale[n], 1));
      largest[n] = fmaxf(largest[n], __shfl_xor_sync(kFullWarp, largest[n], 2));
      const float ratio = h_scale[n] * inverse_power_of_two(largest[n]);
      relative[n] = pack_fp16(ratio, ratio);
    }
#pragma unroll (kTiles <= 2 ? 2 : 1)  // unrolled, the halves would share registers that there are not
    for (int half = 0; half < 2; half++) {
      if (half == 1 && kPieces == 2) load_h(k, 2);
#pragma unroll
      for (int m = 0; m < kMTiles; m += kCount) {
        WeightPiece<kCount> w;
        read_weights(w, unit, half, m);
        if (half == 1 && m + kCount == kMTiles) weights.advance();
#pragma unroll
        for (int n = 0; n < kTiles; n++) {
          RowPiece rows;
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const uint4& piece = h[n][kPieces == 2 ? i / 2 : 2 * half + i / 2];
            rows.word[i][0] = multiply_half2(i % 2 ? piece.z : piece.x, relative[n]);
            rows.word[i][1] = multiply_half2(i % 2 ? piece.w : piece.y, relative[n]);
          }
          const float first = w_scale * __shfl_sync(kFullWarp, largest[n], 8 * t);
          const float second = w_scale * __shfl_sync(kFullWarp, largest[n], 8 * t + 4);
          const float scale[4] = {first, second, first, second};
          multiply(acc[n], m, w, rows, scale);
        }
      }
    }
  }
}

template <int kTiles>
__device__ __forceinline__ void gemm2_combine_tile(Smem& s, const FusedArgs& args, WeightStream& weights,
                                                   const Chunk& chunk, int column_tile, float* slab) {
  float acc[kTiles][kMTiles][4] = {};
  gemm2_tile<kTiles>(args, weights, chunk, column_tile, acc);
  const int warp = weights.warp, g = weights.lane / 4, t = weights.lane % 4;
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
    if (kMmaN * n >= chunk.rows) break;
    // of rows 2 t and 2 t + 1: the sums so far of columns 16 warp + g and the eighth after it
    float* sum[2];
    float before[2][2];
    bool exists[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = kMmaN * n + 2 * t + p;
      exists[p] = warp < kMTiles && r < chunk.rows;
      sum[p] = slab + (exists[p] ? s.token[chunk.first_row + r] : 0) * kColumnTile + kMmaM * warp + g;
      before[p][0] = exists[p] ? __ldcg(sum[p]) : 0.0f;
      before[p][1] = exists[p] ? __ldcg(sum[p] + 8) : 0.0f;
    }
    const float4 added = sum_over_warps(s, acc[n], warp, weights.lane);
    if (exists[0]) __stcg(sum[0], before[0][0] + added.x), __stcg(sum[0] + 8, before[0][1] + added.z);
    if (exists[1]) __stcg(sum[1], before[1][0] + added.y), __stcg(sum[1] + 8, before[1][1] + added.w);
    __syncthreads();
  }
}

// For all threads: tokens first to end - 1 of a column tile to the output; slab(p), p < parts: of the CTAs that have
// it.
template <class Slab>
__device__ __forceinline__ void store_output(const FusedArgs& args, int column_tile, int first, int end, int parts,
                                             Slab slab) {
  constexpr int kOctets = kColumnTile / 8;
  for (int i = first * kOctets + threadIdx.x; i < end * kOctets; i += kThreads) {
    float4 u = make_float4(0, 0, 0, 0), v = u;
    for (int p = 0; p < parts; p++) {
      const float4* from = reinterpret_cast<const float4*>(slab(p)) + 2 * i;
      const float4 x = __ldcg(from), y = __ldcg(from + 1);
      u.x += x.x, u.y += x.y, u.z += x.z, u.w += x.w;
      v.x += y.x, v.y += y.y, v.z += y.z, v.w += y.w;
    }
    *reinterpret_cast<uint4*>(args.output + (size_t)(i / kOctets) * kHidden + column_tile * kColumnTile +
                              i % kOctets * 8) =
        make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w), pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  }
}

// For all threads: the sums of this CTA's column tiles are zero. Ends with a barrier.
__device__ __forceinline__ void zero_sums(const FusedArgs& args, const Division& division) {
  for (int place = 0; place < division.places(); place++) {
    float4* slab = reinterpret_cast<float4*>(args.slab(place, division.cta, division.ctas));
    for (int i = threadIdx.x; i < args.num_tokens * kColumnTile / 4; i += kThreads)
      __stcg(slab + i, make_float4(0, 0, 0, 0));
  }
  __syncthreads();
}

__device__ __forceinline__ void gemm2_combine(Smem& s, const FusedArgs& args, WeightStream& weights) {
  const Division& division = s.division;
  int ready = 0;
#pragma unroll 1
  for (int n = 0; n < division.chunks; n++) {
#pragma unroll 1
    for (int place = 0; place < division.places(); place++) {
      if (!division.takes(place, n)) continue;
      const Chunk chunk = s.chunk[n];
      const int column_tile = division.column_tile(place);
      const int next = n + (place < division.alone ? 1 : division.splits);  // the place's next chunk
      if (next < division.chunks) {
        const float* scale = column_scale(args, s.chunk[next].expert, column_tile, weights.warp, weights.lane);
        if (scale) prefetch_l2(scale);
      }
      if (n >= ready) ready = wait_for_h(args.scratch->slices_stored, n, division.chunks);
      float* slab = args.slab(place, division.cta, division.ctas);
      if (chunk.rows <= 8) gemm2_combine_tile<1>(s, args, weights, chunk, column_tile, slab);
      else if (chunk.rows <= 16) gemm2_combine_tile<2>(s, args, weights, chunk, column_tile, slab);
      else gemm2_combine_tile<3>(s, args, weights, chunk, column_tile, slab);
    }
  }
  for (int place = 0; place < division.alone; place++)
    store_output(args, division.column_tile(place), 0, args.num_tokens, 1,
                 [&](int) { return args.slab(place, division.cta, division.ctas); });
  if (division.shared_tile < 0) return;
  const int split = division.split, splits = division.splits;
  if (splits > 1) {
    if (threadIdx.x == 0) {
      unsigned* added = &args.scratch->sums_added[division.shared_tile];
      counter_arrive(added);
      counter_wait(added, splits);
    }
    __syncthreads();
  }
  store_output(args, division.shared_tile, args.num_tokens * split / splits, args.num_tokens * (split + 1) / splits,
               splits, [&](int p) {
                 return args.slab(division.alone, division.sharing_cta + p * division.sharing_distance, division.ctas);
               });
}
