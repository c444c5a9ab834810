// many_tiles: how gemm1 and gemm2 are cut into tiles, and which of them a cluster does next.
//
// Rows of an expert lie together, filled up to a multiple of kRowAlign with zero rows. A tile is 256 weight rows by up to
// 128 rows, and a cluster of two blocks takes two at a time. Wide tiles have the rows as wgmma's M, 64 a warpgroup, and
// are efficient; narrow ones, for what is left of an expert, have the weights as M and 16, 32, 48 or 64 rows as N.
//
// many_route writes the lists of both GEMMs' tiles, a word pair each: those that take the time of a wide tile in the long
// list, those that take less in the short one behind it; each expert by expert.
#pragma once
#include "fused_layer.cuh"
#include "ptx.cuh"

constexpr int kRowAlign = 16;               // wgmma's N is a multiple of this here
constexpr int kTileRows = 128;            // rows of a wide tile at most: 64 a warpgroup
constexpr int kSwapAbRows = 64;           // rows of a narrow tile at most
constexpr int kTileWeightRows = 256;         // weight rows of a tile: two warpgroups of two m64
constexpr int kWeightTiles1 = 2 * kInter / kTileWeightRows;  // tiles of weights of an expert in gemm1: 128 columns of h each
constexpr int kClusterCtas = 2;

// Which rows and weights a tile has. The rows are first .. first + n of the expert's.
struct WorkTile {
  int expert, column, first, n;
  int first_row, rows;  // of the expert
  bool normal;
  bool shared;  // both blocks of the cluster have the same weights and different rows; else the other way round
  bool early;   // gemm2: h is there when all clusters are at their last tile of gemm1
};

// An entry of a list. x: expert (9 bits), first of a pair's column tiles, or the shared one (5), shared (1), early (1), first
// row of the pair's in the expert / 256 (16). y: the expert's rows / 16 (14), its first row / 16 (18).
constexpr unsigned kNoTile = 0xffffffffu;
static_assert(kHidden / kTileWeightRows <= 32 && kWeightTiles1 <= 32, "a column has 5 bits");

__device__ __forceinline__ uint2 pack_tile(int expert, int column, bool shared, bool early, int first, int rows, int first_row) {
  return make_uint2(expert | column << 9 | shared << 14 | early << 15 | (unsigned)first / 256 << 16,
                    rows / kRowAlign | (unsigned)first_row / kRowAlign << 14);
}
__device__ __forceinline__ WorkTile unpack_tile(uint2 v, int cta_rank) {
  WorkTile tile;
  tile.expert = v.x & 511;
  tile.shared = v.x >> 14 & 1;
  tile.early = v.x >> 15 & 1;
  tile.column = (v.x >> 9 & 31) + (tile.shared ? 0 : cta_rank);
  tile.first = (v.x >> 16) * 256 + (tile.shared ? cta_rank * kTileRows : 0);
  tile.rows = (v.y & 16383) * kRowAlign;
  tile.first_row = (v.y >> 14) * kRowAlign;
  tile.n = min(kTileRows, tile.rows - tile.first);
  tile.normal = tile.n > kSwapAbRows;
  return tile;
}

// How an expert's rows are cut: pairs of tiles that share weights, and one tile more for up to kTileRows rows.
struct RowSplit {
  int pairs, rest;
  __device__ explicit RowSplit(int rows) : pairs(rows / (2 * kTileRows)), rest(rows % (2 * kTileRows)) {
    if (rest > kTileRows) pairs++, rest = 0;  // the second tile of the pair is not full
  }
  // For each pair of column tiles: how many of the long list, and of the short one.
  __device__ int long_tiles() const { return 2 * pairs + (rest > kSwapAbRows); }
  __device__ int short_tiles() const { return rest > 0 && rest <= kSwapAbRows; }
};

// An expert's place in the lists: its rows; tiles for each pair of column tiles, up to its last one and in all.
struct QueuePlace {
  int expert, rows, first_row;
  int long_end, short_end, long_tiles, short_tiles;
  // None of gemm1's tiles of the expert is the last of any cluster: in one of the lists each cluster has one of a later expert.
  __device__ bool early(int clusters) const {
    constexpr int kPairs = kWeightTiles1 / 2;
    return kPairs * long_end + clusters <= kPairs * long_tiles || kPairs * short_end + clusters <= kPairs * short_tiles;
  }
};

// The expert's part of a GEMM's list, by so many threads.
__device__ __forceinline__ void write_tiles(uint2* list, int column_pairs, const QueuePlace& at, bool early, int thread, int threads) {
  const RowSplit cut(at.rows);
  const int long_tiles = cut.long_tiles(), shared = 2 * cut.pairs;
  uint2* long_list = list + column_pairs * (at.long_end - long_tiles);
  for (int i = thread; i < column_pairs * long_tiles; i += threads) {
    const int pair = i / long_tiles, j = i % long_tiles;
    const bool is_shared = j < shared;
    long_list[i] = pack_tile(at.expert, 2 * pair + (is_shared ? j / cut.pairs : 0), is_shared, early,
                          (is_shared ? j % cut.pairs : cut.pairs) * 2 * kTileRows, at.rows, at.first_row);
  }
  if (!cut.short_tiles()) return;
  uint2* short_list = list + column_pairs * (at.long_tiles + at.short_end - 1);
  for (int i = thread; i < column_pairs; i += threads)
    short_list[i] = pack_tile(at.expert, 2 * i, false, early, cut.pairs * 2 * kTileRows, at.rows, at.first_row);
}

// What many_route says of the lists: tiles of a cluster, for each pair of column tiles; and what decides on L2's policy.
struct TileQueues {
  int long_tiles, short_tiles, experts, rows;  // experts with rows; rows with those that fill up
};
__device__ __forceinline__ TileQueues read_tile_queues(const TileQueues* plan) {
  const int4 v = __ldcg(reinterpret_cast<const int4*>(plan));
  return {v.x, v.y, v.z, v.w};
}

// gemm1's order: the clusters take turns at each list, so that all get as many of either, and go from expert to expert, so
// that neighbours work on the same expert's weights at the same time. The next tile of each list is read a tile ahead.
struct StaticTileScheduler {
  const uint2* list;
  int clusters, long_tiles, all, next[2];
  uint2 head[2];

  __device__ StaticTileScheduler(const uint2* list_, const TileQueues& plan, int clusters_)
      : list(list_), clusters(clusters_), long_tiles(plan.long_tiles * (kWeightTiles1 / 2)),
        all((plan.long_tiles + plan.short_tiles) * (kWeightTiles1 / 2)) {
    // the short ones go on where the long ones end
    next[0] = blockIdx.x / kClusterCtas;
    next[1] = long_tiles + (next[0] + clusters - long_tiles % clusters) % clusters;
    read(0), read(1);
  }
  __device__ void read(int which) {
    head[which] = next[which] < (which ? all : long_tiles) ? __ldcg(list + next[which]) : make_uint2(kNoTile, 0);
  }
  // Whether take() will give another.
  __device__ bool more() const { return head[0].x != kNoTile || head[1].x != kNoTile; }

  // The next tile; false when there is none.
  __device__ bool take(WorkTile& tile, int cta_rank) {
    if (!more()) return false;
    if ((head[0].x & 511) <= (head[1].x & 511)) {
      tile = unpack_tile(head[0], cta_rank);
      next[0] += clusters;
      read(0);
    } else {
      tile = unpack_tile(head[1], cta_rank);
      next[1] += clusters;
      read(1);
    }
    return true;
  }
};

// gemm2's order: first come, first served, as a cluster begins when gemm1 leaves it room. The long list and then the
// short, which evens the end out.
__device__ __forceinline__ uint2 queue_entry(const uint2* list, int all, int position) {
  return position < all ? __ldcg(list + position) : make_uint2(kNoTile, 0);
}

// For one thread of each block, that is at the last step of the cluster's tile number `tile`: hands on the next one. There is
// room for four: both blocks' consumers are at nth - 1 at least, as most of tile's steps wait for theirs.
constexpr int kTileStages = 4;
template <class Smem>
__device__ __forceinline__ void publish_tile(Smem& s, uint2 next, int nth, int cta_rank) {
  static_assert(kKSteps2 >= 4, "the ring's stages");
  mbar_arrive_expect_tx(&s.tile_full[nth % kTileStages], sizeof(uint2));
  if (cta_rank != 0) return;
  for (int block = 0; block < kClusterCtas; block++) {
    st_async_cluster(&s.drawn[nth % kTileStages][0], next.x, &s.tile_full[nth % kTileStages], block);
    st_async_cluster(&s.drawn[nth % kTileStages][1], next.y, &s.tile_full[nth % kTileStages], block);
  }
}
// The cluster's tile number `tile`; false behind the last. The first ones need not be drawn.
template <class Smem>
__device__ __forceinline__ bool receive_tile(Smem& s, WorkTile& tile, const uint2* list, int all, int nth, int cta_rank) {
  uint2 v;
  if (nth == 0) {
    v = queue_entry(list, all, blockIdx.x / kClusterCtas);
  } else {
    const int at = (nth - 1) % kTileStages;
    mbar_wait(&s.tile_full[at], (nth - 1) / kTileStages % 2);
    v = make_uint2(s.drawn[at][0], s.drawn[at][1]);
  }
  tile = unpack_tile(v, cta_rank);
  return v.x != kNoTile;
}
