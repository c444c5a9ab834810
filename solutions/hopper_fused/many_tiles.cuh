// many_tiles: how gemm1 and gemm2 are cut into tiles, and which of them a cluster does next.
//
// Rows of an expert lie together, filled up to a multiple of kRows16 with zero rows. A tile is 256 weight rows by up to
// 128 rows, and a cluster of two blocks takes two at a time. Wide tiles have the rows as wgmma's M, 64 a warpgroup, and
// are efficient; narrow ones, for what is left of an expert, have the weights as M and 16, 32, 48 or 64 rows as N.
//
// many_route writes the lists of both GEMMs' tiles, a word pair each: those that take the time of a wide tile in the long
// list, those that take less in the short one behind it; each expert by expert.
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
  int first_row, rows;  // of the expert
  bool wide;
  bool shared;  // both blocks of the cluster have the same weights and different rows; else the other way round
  bool early;   // gemm2: h is there when all clusters are at their last tile of gemm1
};

// An entry of a list. x: expert (9 bits), first of a pair's column tiles, or the shared one (5), shared (1), early (1), first
// row of the pair's in the expert / 256 (16). y: the expert's rows / 16 (14), its first row / 16 (18).
constexpr unsigned kNoTile = 0xffffffffu;
static_assert(kHidden / kTileWeights <= 32 && kTiles1 <= 32, "a column has 5 bits");

__device__ __forceinline__ uint2 packed(int expert, int column, bool shared, bool early, int first, int rows, int first_row) {
  return make_uint2(expert | column << 9 | shared << 14 | early << 15 | (unsigned)first / 256 << 16,
                    rows / kRows16 | (unsigned)first_row / kRows16 << 14);
}
__device__ __forceinline__ Item unpacked(uint2 v, int rank) {
  Item item;
  item.expert = v.x & 511;
  item.shared = v.x >> 14 & 1;
  item.early = v.x >> 15 & 1;
  item.column = (v.x >> 9 & 31) + (item.shared ? 0 : rank);
  item.first = (v.x >> 16) * 256 + (item.shared ? rank * kTileRows : 0);
  item.rows = (v.y & 16383) * kRows16;
  item.first_row = (v.y >> 14) * kRows16;
  item.n = min(kTileRows, item.rows - item.first);
  item.wide = item.n > kNarrowRows;
  return item;
}

// How an expert's rows are cut: pairs of tiles that share weights, and one tile more for up to kTileRows rows.
struct Cut {
  int pairs, rest;
  __device__ explicit Cut(int rows) : pairs(rows / (2 * kTileRows)), rest(rows % (2 * kTileRows)) {
    if (rest > kTileRows) pairs++, rest = 0;  // the second tile of the pair is not full
  }
  // For each pair of column tiles: how many of the long list, and of the short one.
  __device__ int longs() const { return 2 * pairs + (rest > kNarrowRows); }
  __device__ int shorts() const { return rest > 0 && rest <= kNarrowRows; }
};

// An expert's place in the lists: its rows; tiles for each pair of column tiles, up to its last one and in all.
struct ListPlace {
  int expert, rows, first_row;
  int longs_end, shorts_end, longs, shorts;
  // None of gemm1's tiles of the expert is the last of any cluster: in one of the lists each cluster has one of a later expert.
  __device__ bool early(int clusters) const {
    constexpr int kPairs = kTiles1 / 2;
    return kPairs * longs_end + clusters <= kPairs * longs || kPairs * shorts_end + clusters <= kPairs * shorts;
  }
};

// The expert's part of a GEMM's list, by so many threads.
__device__ __forceinline__ void write_tiles(uint2* list, int column_pairs, const ListPlace& at, bool early, int thread, int threads) {
  const Cut cut(at.rows);
  const int longs = cut.longs(), shared = 2 * cut.pairs;
  uint2* long_list = list + column_pairs * (at.longs_end - longs);
  for (int i = thread; i < column_pairs * longs; i += threads) {
    const int pair = i / longs, j = i % longs;
    const bool is_shared = j < shared;
    long_list[i] = packed(at.expert, 2 * pair + (is_shared ? j / cut.pairs : 0), is_shared, early,
                          (is_shared ? j % cut.pairs : cut.pairs) * 2 * kTileRows, at.rows, at.first_row);
  }
  if (!cut.shorts()) return;
  uint2* short_list = list + column_pairs * (at.longs + at.shorts_end - 1);
  for (int i = thread; i < column_pairs; i += threads)
    short_list[i] = packed(at.expert, 2 * i, false, early, cut.pairs * 2 * kTileRows, at.rows, at.first_row);
}

// What many_route says of the lists: tiles of a cluster, for each pair of column tiles; and what decides on L2's policy.
struct Plan {
  int longs, shorts, experts, rows;  // experts with rows; rows with those that fill up
};
__device__ __forceinline__ Plan read_plan(const Plan* plan) {
  const int4 v = __ldcg(reinterpret_cast<const int4*>(plan));
  return {v.x, v.y, v.z, v.w};
}

// gemm1's order: the clusters take turns at each list, so that all get as many of either, and go from expert to expert, so
// that neighbours work on the same expert's weights at the same time. The next tile of each list is read a tile ahead.
struct Walk {
  const uint2* list;
  int clusters, longs, all, next[2];
  uint2 head[2];

  __device__ Walk(const uint2* list_, const Plan& plan, int clusters_)
      : list(list_), clusters(clusters_), longs(plan.longs * (kTiles1 / 2)),
        all((plan.longs + plan.shorts) * (kTiles1 / 2)) {
    // the short ones go on where the long ones end
    next[0] = blockIdx.x / kCluster;
    next[1] = longs + (next[0] + clusters - longs % clusters) % clusters;
    read(0), read(1);
  }
  __device__ void read(int which) {
    head[which] = next[which] < (which ? all : longs) ? __ldcg(list + next[which]) : make_uint2(kNoTile, 0);
  }
  // Whether take() will give another.
  __device__ bool more() const { return head[0].x != kNoTile || head[1].x != kNoTile; }

  // The next tile; false when there is none.
  __device__ bool take(Item& item, int rank) {
    if (!more()) return false;
    if ((head[0].x & 511) <= (head[1].x & 511)) {
      item = unpacked(head[0], rank);
      next[0] += clusters;
      read(0);
    } else {
      item = unpacked(head[1], rank);
      next[1] += clusters;
      read(1);
    }
    return true;
  }
};

// gemm2's order: first come, first served, as a cluster begins when gemm1 leaves it room. The long list and then the
// short, which evens the end out.
__device__ __forceinline__ uint2 tile_number(const uint2* list, int all, int number) {
  return number < all ? __ldcg(list + number) : make_uint2(kNoTile, 0);
}

// For one thread of each block, that is at the last step of the cluster's tile number `tile`: hands on the next one. There is
// room for four: both blocks' consumers are at tile - 1 at least, as most of tile's steps wait for theirs.
constexpr int kDrawn = 4;
template <class Smem>
__device__ __forceinline__ void hand_on(Smem& s, uint2 next, int tile, int rank) {
  static_assert(kK2 >= 4, "the ring's stages");
  mbar_arrive_expect(&s.numbered[tile % kDrawn], sizeof(uint2));
  if (rank != 0) return;
  for (int block = 0; block < kCluster; block++) {
    store_at(&s.drawn[tile % kDrawn][0], next.x, &s.numbered[tile % kDrawn], block);
    store_at(&s.drawn[tile % kDrawn][1], next.y, &s.numbered[tile % kDrawn], block);
  }
}
// The cluster's tile number `tile`; false behind the last. The first ones need not be drawn.
template <class Smem>
__device__ __forceinline__ bool drawn_tile(Smem& s, Item& item, const uint2* list, int all, int tile, int rank) {
  uint2 v;
  if (tile == 0) {
    v = tile_number(list, all, blockIdx.x / kCluster);
  } else {
    const int at = (tile - 1) % kDrawn;
    mbar_wait(&s.numbered[at], (tile - 1) / kDrawn % 2);
    v = make_uint2(s.drawn[at][0], s.drawn[at][1]);
  }
  item = unpacked(v, rank);
  return v.x != kNoTile;
}
