// gemm2_combine: Y = W2 . h^T for this CTA's column tiles, chunk by chunk as h is complete, added to the tokens' sums.
//
// A column tile's sums lie in a slab of their own for each CTA that has the tile. A chunk has a token once, and a
// column is always the same warp's, so plain loads and stores add to them, and the order of the sums is always the same.
#pragma once
#include "counter.cuh"
#include "fp16.cuh"
#include "ld_global.cuh"
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

// Of a tile of 8 rows what a lane multiplies with a unit: of row g of h the pieces for four MMAs each, two for each
// half, and the scale of slice t of the K step.
struct HTile {
  uint4 h[4];
  float scale;

  // Padding inside a tile is stored; tiles beyond repeat the last row.
  __device__ void load(const FusedArgs& args, const Chunk& chunk, int tile, int k) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const int rows = (chunk.rows + kMmaN - 1) / kMmaN * kMmaN, row = chunk.first_row + min(kMmaN * tile + g, rows - 1);
    const uint16_t* from = args.scratch->h[row] + k * kBlockK + 8 * t;
#pragma unroll
    for (int j = 0; j < 4; j++) h[j] = ld_global_cg_v4(from + 32 * j);
    scale = ld_global_cg_f32(&args.scratch->h_scale[row][k * kSlicesPerStep + t]);
  }
};

// What a lane multiplies next, as gemm1's XAhead.
struct HAhead {
  HTile tile[kMaxTiles];
  float w_scale = 0.0f;  // W2's for the next chunk and column tile, K step warp + kWarps * lane

  // The first unit of a chunk, for the tiles from `first` on.
  __device__ void load_tiles(const FusedArgs& args, const Chunk& chunk, int warp, int first) {
#pragma unroll
    for (int n = 0; n < kMaxTiles; n++)
      if (n >= first && kMmaN * n < chunk.rows && warp < kNumKBlocks2) tile[n].load(args, chunk, n, warp);
  }
  __device__ void load_weight_scale(const FusedArgs& args, int expert, int column_tile, int warp, int lane) {
    const int block = (expert * kHidden + column_tile * kColumnTile) / kBlockK, k = warp + kWarps * lane;
    if (k < kNumKBlocks2) w_scale = ld_global_f32(args.w2_scale + block * kNumKBlocks2 + k);
  }
};

// Sums over this warp's K steps of 64 output columns, for up to 8 kTiles rows of the chunk. `ahead` has the chunk's
// first unit, and afterwards, if next_ready, the next one's. w_scale: of this chunk, as HAhead's.
template <int kTiles>
__device__ __forceinline__ void gemm2_tile(const FusedArgs& args, WeightStream& weights, const Chunk& chunk,
                                           const Chunk& next, bool next_ready, float w_scale, HAhead& ahead,
                                           float (&acc)[kTiles][kMTiles][4]) {
  const int warp = weights.warp, t = weights.lane % 4;
  for (int k = warp, step = 0; k < kNumKBlocks2; k += kWarps, step++) {
    const bool last = k + kWarps >= kNumKBlocks2;
    // In any case a load: where it was one under a condition, it was waited for in mid-unit.
    const Chunk chunk_ahead = last && next_ready ? next : chunk;
    HTile tile_ahead[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; n++) tile_ahead[n].load(args, chunk_ahead, n, last ? warp : k + kWarps);

    const uint8_t* unit = weights.wait();
    const float unit_scale = kUnpackScale * __shfl_sync(kFullWarp, w_scale, step);
    float largest[kTiles];      // scale of the row, of the four slices in the K step
    uint32_t relative[kTiles];  // this lane's slice's scale over that, as a pair of fp16
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      const float h_scale = ahead.tile[n].scale;
      largest[n] = fmaxf(h_scale, __shfl_xor_sync(kFullWarp, h_scale, 1));
      largest[n] = fmaxf(largest[n], __shfl_xor_sync(kFullWarp, largest[n], 2));
      const float ratio = h_scale * inverse_power_of_two(largest[n]);
      relative[n] = pack_fp16(ratio, ratio);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      WeightPiece w;
      read_weights(w, unit, half);
      if (half == 1) weights.advance();
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        RowPiece rows;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const uint4& piece = ahead.tile[n].h[2 * half + i / 2];
          rows.word[i][0] = mul_f16x2(i % 2 ? piece.z : piece.x, relative[n]);
          rows.word[i][1] = mul_f16x2(i % 2 ? piece.w : piece.y, relative[n]);
        }
        const float first = unit_scale * __shfl_sync(kFullWarp, largest[n], 8 * t);
        const float second = unit_scale * __shfl_sync(kFullWarp, largest[n], 8 * t + 4);
        const float scale[4] = {first, second, first, second};
        multiply(acc[n], w, rows, scale);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; n++) ahead.tile[n] = tile_ahead[n];
  }
  if (next_ready) ahead.load_tiles(args, next, warp, kTiles);
}

template <int kTiles>
__device__ __forceinline__ void gemm2_combine_tile(Smem& s, const FusedArgs& args, WeightStream& weights,
                                                   const Chunk& chunk, const Chunk& next, bool next_ready,
                                                   float w_scale, HAhead& ahead, float* slab) {
  const int warp = weights.warp, g = weights.lane / 4, t = weights.lane % 4;
  // For warps 0 to 3: of rows 2 t and 2 t + 1 of a tile the sums so far of columns 16 warp + g and the eighth after it.
  const auto exists = [&](int n, int p) { return warp < kMTiles && kMmaN * n + 2 * t + p < chunk.rows; };
  const auto sums = [&](int n, int p) {
    return slab + s.token[chunk.first_row + kMmaN * n + 2 * t + p] * kColumnTile + kMmaM * warp + g;
  };
  float before[kTiles][2][2] = {};  // here, as they take as long as a unit to arrive
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      if (!exists(n, p)) continue;
      const float* sum = sums(n, p);
      before[n][p][0] = ld_global_cg_f32(sum), before[n][p][1] = ld_global_cg_f32(sum + 8);
    }
  }
  float acc[kTiles][kMTiles][4] = {};
  gemm2_tile<kTiles>(args, weights, chunk, next, next_ready, w_scale, ahead, acc);
#pragma unroll
  for (int n = 0; n < kTiles; n++) {
    if (kMmaN * n >= chunk.rows) break;
    const float4 added = sum_over_warps(s, acc[n], warp, weights.lane);
    if (exists(n, 0))
      __stcg(sums(n, 0), before[n][0][0] + added.x), __stcg(sums(n, 0) + 8, before[n][0][1] + added.z);
    if (exists(n, 1))
      __stcg(sums(n, 1), before[n][1][0] + added.y), __stcg(sums(n, 1) + 8, before[n][1][1] + added.w);
  }
  __syncwarp();  // in the next chunk a token has other lanes
}

// For all threads: tokens first to end - 1 of a column tile to the output; slab(p), p < parts: of the CTAs that have
// it.
template <class Slab>
__device__ __forceinline__ void store_output(const FusedArgs& args, int column_tile, int first, int end, int parts,
                                             Slab slab) {
  constexpr int kOctets = kColumnTile / 8;
#pragma unroll 1
  for (int i = first * kOctets + threadIdx.x; i < end * kOctets; i += kThreads) {
    float4 u = make_float4(0, 0, 0, 0), v = u;
#pragma unroll 1
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

// For all threads: the sums of this CTA's column tiles are zero behind the next barrier. Before routing, which takes
// long enough for the stores; after pdl_wait(), as the launch before reads these slabs.
__device__ __forceinline__ void zero_sums(const FusedArgs& args, const Division& columns) {
  for (int place = 0; place < columns.places(); place++) {
    float4* slab = reinterpret_cast<float4*>(args.slab(place, columns.cta, columns.ctas));
#pragma unroll 1
    for (int i = threadIdx.x; i < args.num_tokens * kColumnTile / 4; i += kThreads)
      __stcg(slab + i, make_float4(0, 0, 0, 0));
  }
}

__device__ __forceinline__ void gemm2_combine(Smem& s, const FusedArgs& args, WeightStream& weights) {
  const Division& division = s.division;
  const auto load_weight_scale = [&](HAhead& ahead, int chunk, int place) {
    ahead.load_weight_scale(args, s.chunk[chunk].expert, division.column_tile(place), weights.warp, weights.lane);
  };
  HAhead ahead;
  int ready = 0, n = 0, place = -1;
  bool more = division.next_place(n, place), loaded = false;
  if (more) load_weight_scale(ahead, n, place);
#pragma unroll 1
  while (more) {
    const Chunk chunk = s.chunk[n];
    float* slab = args.slab(place, division.cta, division.ctas);
    const float w_scale = ahead.w_scale;
    if (n >= ready) ready = wait_for_h(args.scratch->slices_stored, n, division.chunks);
    if (!loaded) ahead.load_tiles(args, chunk, weights.warp, 0);
    more = division.next_place(n, place);
    if (more) load_weight_scale(ahead, n, place);
    loaded = more && n < ready;
    const Chunk next = s.chunk[more ? n : 0];
    if (chunk.rows <= 8) gemm2_combine_tile<1>(s, args, weights, chunk, next, loaded, w_scale, ahead, slab);
    else gemm2_combine_tile<2>(s, args, weights, chunk, next, loaded, w_scale, ahead, slab);
  }
  __syncthreads();  // sums are stored
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
