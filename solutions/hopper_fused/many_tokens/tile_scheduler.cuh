// tile_scheduler: how gemm1 and gemm2 are cut into work tiles, and which of them a cluster computes next.
//
// Rows of an expert lie together, padded with zero rows to a multiple of kRowAlign. A tile is 256 weight rows by up to
// 128 rows; a cluster of two CTAs takes two tiles at a time, which share either their weights or their rows. In a
// normal tile wgmma's M is the rows, 64 for each warpgroup. In a swap-AB tile, for an expert's last few rows, M is the
// weight rows and N is 16, 32, 48 or 64 rows.
//
// route_permute writes a queue of tile pairs for each GEMM, two words a pair: first the long ones, which take the time of
// a normal tile, then the short ones; each expert by expert. gemm1 uses them by StaticTileScheduler, gemm2 by
// DynamicTileScheduler.
#pragma once
#include "barrier.cuh"
#include "cluster.cuh"
#include "sizes.cuh"

constexpr int kRowAlign = 16;         // wgmma's N of swap-AB tiles is a multiple of this
constexpr int kTileRows = 128;        // rows of a normal tile at most
constexpr int kSwapAbRows = 64;       // rows of a swap-AB tile at most
constexpr int kTileWeightRows = 256;  // weight rows of a tile
constexpr int kWeightTiles1 =
    2 * kIntermediate / kTileWeightRows;  // weight tiles of an expert in gemm1: 128 columns of h each
constexpr int kClusterCtas = 2;
constexpr int kPairRows = kClusterCtas * kTileRows;  // of two tiles that share weights

static_assert(kClusterCtas == 2, "tiles come in pairs");
static_assert(kTileRows == kConsumerWarpgroups * 64, "a warpgroup has m64 of a normal tile's rows");
static_assert(kTileWeightRows == kConsumerWarpgroups * 2 * 64,
              "a warpgroup has two m64 of a swap-AB tile's weight rows");
static_assert(kTileWeightRows / 2 == kBlockK, "a gemm1 tile's up, and its gate, are one scale block");
static_assert(kWeightTiles1 % 2 == 0 && kHidden / kTileWeightRows % 2 == 0, "weight tiles come in pairs");

struct WorkTile {
  int expert, column, first, n;  // column: which weight tile; rows first .. first + n of the expert's
  int first_row, rows;           // of the expert, padding included
  bool normal;                   // else swap-AB
  bool shared;  // the cluster's tiles share weights and have different rows; else they share rows
  bool early;   // gemm2: h is stored when all clusters are at their last tile of gemm1
};

// An entry of a queue. x: expert (9 bits), weight tile, the first of a pair or the shared one (5), shared (1), early
// (1), first row of the pair in the expert / 256 (16). y: the expert's rows / 16 (14), its first row / 16 (18).
constexpr unsigned kNoTile = 0xffffffffu;
constexpr int kExpertBits = 9, kColumnBits = 5, kRowsBits = 14;
constexpr unsigned kExpertMask = (1u << kExpertBits) - 1;
constexpr int kSharedShift = kExpertBits + kColumnBits, kEarlyShift = kSharedShift + 1, kFirstShift = kEarlyShift + 1;
static_assert(kFirstShift == 16, "the entry's first word is full");
static_assert(kNumLocalExperts < 1 << kExpertBits, "an expert fits its bits, and no entry equals kNoTile");
static_assert(kHidden / kTileWeightRows <= 1 << kColumnBits && kWeightTiles1 <= 1 << kColumnBits,
              "a column fits its bits");

__device__ __forceinline__ uint2 pack_tile(
    int expert, int column, bool shared, bool early, int first, int rows, int first_row) {
  return make_uint2(expert | column << kExpertBits | shared << kSharedShift | early << kEarlyShift |
                        (unsigned)first / kPairRows << kFirstShift,
                    rows / kRowAlign | (unsigned)first_row / kRowAlign << kRowsBits);
}
// rank: of the CTA in its cluster
__device__ __forceinline__ WorkTile unpack_tile(uint2 v, int rank) {
  WorkTile tile;
  tile.expert = v.x & kExpertMask;
  tile.shared = v.x >> kSharedShift & 1;
  tile.early = v.x >> kEarlyShift & 1;
  tile.column = (v.x >> kExpertBits & ((1 << kColumnBits) - 1)) + (tile.shared ? 0 : rank);
  tile.first = (v.x >> kFirstShift) * kPairRows + (tile.shared ? rank * kTileRows : 0);
  tile.rows = (v.y & ((1 << kRowsBits) - 1)) * kRowAlign;
  tile.first_row = (v.y >> kRowsBits) * kRowAlign;
  tile.n = min(kTileRows, tile.rows - tile.first);
  tile.normal = tile.n > kSwapAbRows;
  return tile;
}

// How an expert's rows are cut: pairs of tiles that share weights, and one more tile for up to kTileRows rows, which is
// done for two weight tiles at a time.
struct RowSplit {
  int pairs, rest;
  __device__ explicit RowSplit(int rows) : pairs(rows / kPairRows), rest(rows % kPairRows) {
    if (rest > kTileRows) pairs++, rest = 0;  // the pair's second tile is not full
  }
  // Entries of the long and the short queue, for each pair of weight tiles.
  __device__ int long_tiles() const { return 2 * pairs + (rest > kSwapAbRows); }
  __device__ int short_tiles() const { return rest > 0 && rest <= kSwapAbRows; }
};

// An expert's place in the queues, counted in entries for each pair of weight tiles: up to and with its last one, and
// in all.
struct QueuePlace {
  int expert, rows, first_row;
  int long_end, short_end, long_tiles, short_tiles;
  // Whether none of the expert's tiles is the last gemm1 tile of any cluster: one queue holds a tile of a later expert
  // for each cluster. StaticTileScheduler goes from expert to expert, so gemm2 may then begin with this expert early.
  __device__ bool early(int clusters) const {
    constexpr int kPairs = kWeightTiles1 / 2;
    return kPairs * long_end + clusters <= kPairs * long_tiles || kPairs * short_end + clusters <= kPairs * short_tiles;
  }
};

// Writes the expert's part of a GEMM's queues, with `threads` threads. column_pairs: pairs of weight tiles.
__device__ __forceinline__ void write_tiles(
    uint2* queue, int column_pairs, const QueuePlace& at, bool early, int thread, int threads) {
  const RowSplit split(at.rows);
  const int long_tiles = split.long_tiles(), shared = 2 * split.pairs;
  uint2* long_queue = queue + column_pairs * (at.long_end - long_tiles);
  for (int i = thread; i < column_pairs * long_tiles; i += threads) {
    const int pair = i / long_tiles, j = i % long_tiles;
    const bool is_shared = j < shared;
    long_queue[i] = pack_tile(at.expert, 2 * pair + (is_shared ? j / split.pairs : 0), is_shared, early,
                              (is_shared ? j % split.pairs : split.pairs) * kPairRows, at.rows, at.first_row);
  }
  if (!split.short_tiles()) return;
  uint2* short_queue = queue + column_pairs * (at.long_tiles + at.short_end - 1);
  for (int i = thread; i < column_pairs; i += threads)
    short_queue[i] = pack_tile(at.expert, 2 * i, false, early, split.pairs * kPairRows, at.rows, at.first_row);
}

// What route_permute found: lengths of the queues for each pair of weight tiles, active experts, rows with padding.
struct TileQueues {
  int long_tiles, short_tiles, experts, rows;
};
__device__ __forceinline__ TileQueues read_tile_queues(const TileQueues* queues) {
  const int4 v = __ldcg(reinterpret_cast<const int4*>(queues));
  return {v.x, v.y, v.z, v.w};
}

// gemm1: cluster c takes entries c, c + clusters, ... of each queue, so that all get the same number of either kind. It
// takes from the queue that is at the lower expert, so that neighbours use the same expert's weights at the same time.
// The next entry of each queue is read one tile ahead.
struct StaticTileScheduler {
  const uint2* queue;
  int clusters, long_tiles, all, next[2];
  uint2 head[2];

  __device__ StaticTileScheduler(const uint2* queue_, const TileQueues& queues, int clusters_)
      : queue(queue_), clusters(clusters_), long_tiles(queues.long_tiles * (kWeightTiles1 / 2)),
        all((queues.long_tiles + queues.short_tiles) * (kWeightTiles1 / 2)) {
    // the short tiles begin with the cluster at which the long ones end
    next[0] = blockIdx.x / kClusterCtas;
    next[1] = long_tiles + (next[0] + clusters - long_tiles % clusters) % clusters;
    read(0), read(1);
  }
  __device__ void read(int which) {
    head[which] = next[which] < (which ? all : long_tiles) ? __ldcg(queue + next[which]) : make_uint2(kNoTile, 0);
  }
  // Whether take() will give another tile; does not wait for the entries that are on their way.
  __device__ bool more() const { return next[0] < long_tiles || next[1] < all; }

  // The next tile; false when there is none.
  __device__ bool take(WorkTile& tile, int rank) {
    if (!more()) return false;
    if ((head[0].x & kExpertMask) <= (head[1].x & kExpertMask)) {
      tile = unpack_tile(head[0], rank);
      next[0] += clusters;
      read(0);
    } else {
      tile = unpack_tile(head[1], rank);
      next[1] += clusters;
      read(1);
    }
    return true;
  }
};

// gemm2: a cluster takes the next entry of the queues, long tiles first, from a counter in global memory: clusters
// begin at different times, when gemm1 leaves an SM. Its first tile is that of its own number. The producer of the
// cluster's CTA 0 takes the others and sends them to both CTAs, kTileStages of them in flight.
constexpr int kTileStages = 4;

__device__ __forceinline__ uint2 queue_entry(const uint2* queue, int all, int position) {
  return position < all ? __ldcg(queue + position) : make_uint2(kNoTile, 0);
}

template <class Smem>
struct DynamicTileScheduler {
  Smem& s;
  const uint2* queue;
  int all, rank;  // entries; the CTA in its cluster

  // The cluster's nth tile; false behind the last.
  __device__ __forceinline__ bool get(WorkTile& tile, int nth) const {
    uint2 v;
    if (nth == 0) {
      v = queue_entry(queue, all, blockIdx.x / kClusterCtas);
    } else {
      const int at = (nth - 1) % kTileStages;
      mbar_wait(&s.tile_full[at], (nth - 1) / kTileStages % 2);
      v = make_uint2(s.tile_word[at][0], s.tile_word[at][1]);
    }
    tile = unpack_tile(v, rank);
    return v.x != kNoTile;
  }
  // For one thread of each CTA, before it loads tile nth's last K step: sends the next entry. The buffer that it
  // overwrites, that of tile nth + 1 - kTileStages, has been read: both CTAs' consumers are at tile nth - 1 at least,
  // as the pipeline has no more stages than a tile has K steps.
  __device__ __forceinline__ void publish(uint2 next, int nth) const {
    static_assert(kNumKBlocks2 >= 4, "a tile has at least as many K steps as the pipeline has stages");
    mbar_arrive_expect_tx(&s.tile_full[nth % kTileStages], sizeof(uint2));
    if (rank != 0) return;
    for (int cta = 0; cta < kClusterCtas; cta++) {
      st_async_cluster(&s.tile_word[nth % kTileStages][0], next.x, &s.tile_full[nth % kTileStages], cta);
      st_async_cluster(&s.tile_word[nth % kTileStages][1], next.y, &s.tile_full[nth % kTileStages], cta);
    }
  }
};
