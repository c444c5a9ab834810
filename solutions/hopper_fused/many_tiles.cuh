// many_tiles: how gemm1 and gemm2 are cut into tiles, and which of them a cluster does next.
//
// Rows of an expert lie together, filled up to a multiple of kRows16 with zero rows. A tile is 256 weight rows by up to
// 128 rows, and a cluster of two blocks takes two at a time. Wide tiles have the rows as wgmma's M, 64 a warpgroup, and
// are efficient; narrow ones, for what is left of an expert, have the weights as M and 16, 32, 48 or 64 rows as N.
#pragma once
#include "layer.cuh"
#include "sm90.cuh"

constexpr int kRows16 = 16;               // wgmma's N is a multiple of this here
constexpr int kTileRows = 128;            // rows of a wide tile at most: 64 a warpgroup
constexpr int kNarrowRows = 64;           // rows of a narrow tile at most
constexpr int kTileWeights = 256;         // weight rows of a tile: two warpgroups of two m64
constexpr int kTiles1 = 2 * kInter / kTileWeights;  // tiles of weights of an expert in gemm1: 128 columns of h each
constexpr int kCluster = 2;

// Which rows and weights a tile has. The rows are first .. first + n of the expert's.
struct Item {
  int expert, column, first, n;
  bool wide;
  bool shared;  // both blocks of the cluster have the same weights and different rows; else the other way round
};

// How an expert's rows are cut: pairs of tiles that share weights, and one tile more for up to kTileRows rows.
struct Cut {
  int pairs, rest;
  __device__ explicit Cut(int rows) : pairs(rows / (2 * kTileRows)), rest(rows % (2 * kTileRows)) {
    if (rest > kTileRows) pairs++, rest = 0;  // the second tile of the pair is not full
  }
};

// The experts' rows. The same in every block.
struct Work {
  int rows[kLocal], first_row[kLocal + 1];

  // For one whole warp.
  __device__ void divide(const unsigned* count) {
    const int lane = threadIdx.x % 32;
    rows[lane] = (__ldcg(count + lane) + kRows16 - 1) / kRows16 * kRows16;
    int end = rows[lane];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int r = __shfl_up_sync(0xffffffffu, end, d);
      end += lane >= d ? r : 0;
    }
    first_row[lane + 1] = end;
    if (lane == 0) first_row[0] = 0;
  }
  // With rows. For one whole warp.
  __device__ int experts() const { return __popc(__ballot_sync(0xffffffffu, rows[threadIdx.x % 32] > 0)); }
};

// All tiles of a product, in two lines: those that take the time of a wide tile, and those that take less; each expert by
// expert. For a whole warp.
struct Lines {
  const Work& work;
  int rank, end[2];  // lane e: the number of tiles of experts 0..e in the line

  __device__ Lines(const Work& w, int column_tiles, int rank_) : work(w), rank(rank_) {
    const int column_pairs = column_tiles / 2;
    const int lane = threadIdx.x % 32;
    const Cut cut(work.rows[lane]);
    end[0] = column_pairs * (2 * cut.pairs + (cut.rest > kNarrowRows));
    end[1] = cut.rest > 0 && cut.rest <= kNarrowRows ? column_pairs : 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, end[c], d);
        end[c] += lane >= d ? before : 0;
      }
    }
  }
  __device__ int tiles(int line) const { return __shfl_sync(0xffffffffu, end[line], kLocal - 1); }
  // Whose tile number i of a line is; 32 behind the end.
  __device__ int expert_of(int line, int i) const { return __popc(__ballot_sync(0xffffffffu, i >= end[line])); }
  // Tile number i of a line, which is the expert's.
  __device__ void tile(Item& item, bool is_long, int expert, int i) const {
    const int before = __shfl_sync(0xffffffffu, is_long ? end[0] : end[1], max(expert - 1, 0));
    const Cut cut(work.rows[expert]);
    const int each = is_long ? 2 * cut.pairs + (cut.rest > kNarrowRows) : 1;
    const int of_expert = i - (expert ? before : 0), column_pair = of_expert / each, j = of_expert % each;
    item.expert = expert;
    item.shared = is_long && j < 2 * cut.pairs;
    item.column = 2 * column_pair + (item.shared ? j / cut.pairs : rank);
    item.first = item.shared ? (j % cut.pairs * 2 + rank) * kTileRows : cut.pairs * 2 * kTileRows;
    item.n = min(kTileRows, work.rows[expert] - item.first);
    item.wide = item.n > kNarrowRows;
  }
  // Experts, a bit each, none of whose tiles is the last of any cluster's Walk: in one of the lines each cluster has a tile
  // of a later expert.
  __device__ unsigned early() const {
    const int clusters = gridDim.x / kCluster, longs = tiles(0), shorts = tiles(1);
    return __ballot_sync(0xffffffffu, end[0] + clusters <= longs || end[1] + clusters <= shorts);
  }
};

// gemm1's order: the clusters take turns at each line, so that all have as many of either, and go from expert to expert, so
// that neighbours work on the same expert's weights at the same time.
struct Walk : Lines {
  int next[2];

  __device__ Walk(const Work& w, int column_tiles, int rank_) : Lines(w, column_tiles, rank_) {
    // the short ones go on where the long ones end
    const int clusters = gridDim.x / kCluster;
    next[0] = blockIdx.x / kCluster;
    next[1] = (next[0] + clusters - tiles(0) % clusters) % clusters;
  }
  // Whether take() will give another.
  __device__ bool more() const { return next[0] < tiles(0) || next[1] < tiles(1); }

  // The next tile; false when there is none.
  __device__ bool take(Item& item) {
    const int long_expert = expert_of(0, next[0]), short_expert = expert_of(1, next[1]);
    if (long_expert == kLocal && short_expert == kLocal) return false;
    const bool is_long = long_expert <= short_expert;
    tile(item, is_long, is_long ? long_expert : short_expert, is_long ? next[0] : next[1]);
    (is_long ? next[0] : next[1]) += gridDim.x / kCluster;
    return true;
  }
};

// gemm2's order: first come, first served, as a cluster begins when gemm1 leaves it room. The long line and then the
// short, which evens the end out.
struct Draw : Lines {
  using Lines::Lines;
  // The tile with this number; false when there is none.
  __device__ bool take(Item& item, int number) const {
    const int longs = tiles(0);
    const bool is_long = number < longs;
    const int i = is_long ? number : number - longs;
    const int expert = is_long ? expert_of(0, i) : expert_of(1, i);
    if (expert == kLocal) return false;
    tile(item, is_long, expert, i);
    return true;
  }
};

// For one thread of each block, that has asked for all of the cluster's tile number `tile`: draws the next one. There is
// room for two numbers: a loader is so far only when all of both blocks are at that tile.
template <class Smem>
__device__ __forceinline__ void draw_next(Smem& s, unsigned* drawn, int tile, int rank) {
  mbar_arrive_expect(&s.numbered[tile % 2], sizeof(int));
  if (rank != 0) return;
  const int number = gridDim.x / kCluster + atomicAdd(drawn, 1u);
  for (int block = 0; block < kCluster; block++) store_at(&s.number[tile % 2], number, &s.numbered[tile % 2], block);
}
// What was drawn as the cluster's tile number `tile`. The first ones need not be drawn.
template <class Smem>
__device__ __forceinline__ int drawn_number(Smem& s, int tile) {
  if (tile == 0) return blockIdx.x / kCluster;
  mbar_wait(&s.numbered[(tile - 1) % 2], (tile - 1) / 2 % 2);
  return s.number[(tile - 1) % 2];
}
