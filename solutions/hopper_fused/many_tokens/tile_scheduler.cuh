// tile_scheduler: the work tiles of both grouped GEMMs, and which of them a cluster computes next.
//
// M is an expert's rows, which lie together, padded to a multiple of kRowAlign by unused rows. N is its weight rows. K
// comes in blocks of 128 with one scale.
//
// A work tile is an m_block of up to kBlockM rows by an n_block of kBlockN weight rows of one expert, over all of K. A
// cluster of two CTAs takes a pair of tiles at a time, which both have equally many K blocks, so that neither CTA waits
// for one that the other does not reach:
//   W multicast   one n_block, two m_blocks: each CTA loads half of the weights and multicasts it to both
//   else          two n_blocks of one m_block, an expert's last without a second one: each CTA loads its own weights
// With an odd number of n_blocks in gemm1 (kOddNBlocks), a pair without multicast may belong to two experts.
//
// A tile of more than kSwapAbRows rows is normal: wgmma's M is the rows, 64 for each consumer warpgroup. A smaller one
// is swap-AB: wgmma's M, which is never less than 64, is the weight rows, and its N is the 16, 32, 48 or 64 rows.
//
// route_permute writes a queue for each GEMM: an array with an entry of two words for each pair of tiles. First come
// the long entries, which have a normal tile, then the short ones; each in order of experts. In gemm1's queue with
// kOddNBlocks the entries with multicast come first, then the others. gemm1 takes entries by StaticTileScheduler, gemm2
// by DynamicTileScheduler.
#pragma once
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cluster.cuh"
#include "hopper_fused/many_tokens/grouped_config.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// ---- work tiles ----

struct WorkTile {
  int expert, n_block;
  int m_first, m_rows;            // rows m_first to m_first + m_rows of the expert
  int expert_first, expert_rows;  // the expert's rows among all rows, padding included
  bool normal;                    // else swap-AB
  bool multicast_w;               // the cluster's tiles have one n_block and two m_blocks; else the reverse
  bool before_last_wave;          // for gemm2: no cluster's last tile of gemm1 is one of this expert
};

// An entry's words, from the lowest bits up:
//   x   expert                       9 bits, or 11
//       n_block                      5: the shared one, or the first of a pair. With kOddNBlocks a CTA's own, less its
//                                       rank in the cluster, modulo 32
//       multicast_w                  1
//       before_last_wave             1
//       m_first of the pair          the other 16, or 14; in units of kClusterM
//   y   expert_rows                  14; in units of kRowAlign
//       expert_first                 18; in units of kRowAlign
constexpr unsigned kNoTile = 0xffffffffu;
constexpr int kExpertBits = kNumLocalExperts < 1 << 9 ? 9 : 11, kNBlockBits = 5, kRowsBits = 14;
constexpr unsigned kExpertMask = (1u << kExpertBits) - 1, kNBlockMask = (1u << kNBlockBits) - 1;
constexpr int kMulticastShift = kExpertBits + kNBlockBits, kBeforeLastWaveShift = kMulticastShift + 1,
              kMFirstShift = kBeforeLastWaveShift + 1;
static_assert(kNumLocalExperts < 1 << kExpertBits, "an expert fits its bits, and no entry equals kNoTile");
static_assert(kHidden <= Grouped::kBlockN << kNBlockBits && Grouped::kNumNBlocks1 <= 1 << kNBlockBits,
              "an n_block fits its bits");

__device__ __forceinline__ uint2 pack_tile(
    int expert, int n_block, bool multicast_w, bool before_last_wave, int m_first, int expert_rows, int expert_first) {
  return make_uint2(expert | n_block << kExpertBits | multicast_w << kMulticastShift |
                        before_last_wave << kBeforeLastWaveShift |
                        (unsigned)m_first / Grouped::kClusterM << kMFirstShift,
                    expert_rows / Grouped::kRowAlign | (unsigned)expert_first / Grouped::kRowAlign << kRowsBits);
}
// rank: of the CTA in its cluster
__device__ __forceinline__ WorkTile unpack_tile(uint2 entry, int rank) {
  WorkTile tile;
  tile.expert = entry.x & kExpertMask;
  tile.multicast_w = entry.x >> kMulticastShift & 1;
  tile.before_last_wave = entry.x >> kBeforeLastWaveShift & 1;
  tile.n_block = (entry.x >> kExpertBits & kNBlockMask) + (tile.multicast_w ? 0 : rank);
  if constexpr (Grouped::kOddNBlocks) tile.n_block &= kNBlockMask;
  tile.m_first = (entry.x >> kMFirstShift) * Grouped::kClusterM + (tile.multicast_w ? rank * Grouped::kBlockM : 0);
  tile.expert_rows = (entry.y & ((1 << kRowsBits) - 1)) * Grouped::kRowAlign;
  tile.expert_first = (entry.y >> kRowsBits) * Grouped::kRowAlign;
  tile.m_rows = min(Grouped::kBlockM, tile.expert_rows - tile.m_first);
  tile.normal = tile.m_rows > Grouped::kSwapAbRows;
  return tile;
}

// ---- queues ----

// An expert's m_blocks: `pairs` that share weights, and one of `rest` rows that is left over, at most kBlockM.
struct MBlocks {
  int pairs, rest;
  __device__ explicit MBlocks(int rows) : pairs(rows / Grouped::kClusterM), rest(rows % Grouped::kClusterM) {
    if (rest > Grouped::kBlockM) pairs++, rest = 0;  // the pair's second m_block is not full
  }
  // Entries for each pair of n_blocks.
  __device__ int long_entries() const { return 2 * pairs + (rest > Grouped::kSwapAbRows); }
  __device__ int short_entries() const { return rest > 0 && rest <= Grouped::kSwapAbRows; }
};

// gemm1's entries of so many entries of a pair of n_blocks.
__device__ constexpr int gemm1_entries(int entries_of_pair) {
  return Grouped::kOddNBlocks ? (entries_of_pair * kNumKBlocks2 + 1) / 2
                              : entries_of_pair * (Grouped::kNumNBlocks1 / 2);
}

// Where an expert's entries are in the queue. All counts are for one pair of n_blocks. Where there are n pairs, an
// expert with two long entries and a long_end of 5 has the long entries 3 n to 5 n - 1.
struct QueuePlace {
  int expert, expert_rows, expert_first;
  int long_end, short_end, long_entries, short_entries;  // ends of this expert's entries, numbers of all experts'
  int single_end, singles;  // with kOddNBlocks, the same of m_blocks without a pair
  // With kOddNBlocks: entries of m_blocks in pairs.
  __device__ int paired_end() const { return long_end + short_end - single_end; }
  __device__ int paired() const { return long_entries + short_entries - singles; }
  // Whether no cluster's last gemm1 tile is one of the expert's: StaticTileScheduler goes from expert to expert, so it
  // is enough that the long or the short entries have one of a later expert for each cluster.
  __device__ bool before_last_wave(int clusters) const {
    if constexpr (Grouped::kOddNBlocks)
      return gemm1_entries(paired_end()) + clusters <= gemm1_entries(paired()) ||
             gemm1_entries(single_end) + clusters <= gemm1_entries(singles);
    return gemm1_entries(long_end) + clusters <= gemm1_entries(long_entries) ||
           gemm1_entries(short_end) + clusters <= gemm1_entries(short_entries);
  }
};

// Writes the expert's entries of a GEMM's queue, with `threads` threads.
__device__ __forceinline__ void write_entries(
    uint2* queue, int n_block_pairs, const QueuePlace& at, bool before_last_wave, int thread, int threads) {
  const MBlocks blocks(at.expert_rows);
  const int long_entries = blocks.long_entries(), multicast = 2 * blocks.pairs;
  uint2* long_queue = queue + n_block_pairs * (at.long_end - long_entries);
  for (int i = thread; i < n_block_pairs * long_entries; i += threads) {
    const int pair = i / long_entries, j = i % long_entries;
    const bool multicast_w = j < multicast;
    long_queue[i] =
        pack_tile(at.expert, 2 * pair + (multicast_w ? j / blocks.pairs : 0), multicast_w, before_last_wave,
                  (multicast_w ? j % blocks.pairs : blocks.pairs) * Grouped::kClusterM, at.expert_rows,
                  at.expert_first);
  }
  if (!blocks.short_entries()) return;
  uint2* short_queue = queue + n_block_pairs * (at.long_entries + at.short_end - 1);
  for (int i = thread; i < n_block_pairs; i += threads)
    short_queue[i] = pack_tile(at.expert, 2 * i, false, before_last_wave, blocks.pairs * Grouped::kClusterM,
                               at.expert_rows, at.expert_first);
}

// Writes the expert's entries of gemm1's queue with kOddNBlocks. An entry has two words for each CTA of the cluster.
// Tiles of m_blocks without a pair follow each other, expert by expert, two in an entry: where an expert ends with an
// entry's first tile, the next expert with such an m_block has the second one. If the number of all these tiles is odd,
// the last entry's second tile is of an n_block that pads I; nobody reads its result.
__device__ __forceinline__ void write_gemm1_entries(uint2* queue, const QueuePlace& at, bool before_last_wave,
                                                    int thread, int threads) {
  constexpr int kCtas = Grouped::kClusterCtas;
  const MBlocks blocks(at.expert_rows);
  uint2* paired = queue + kCtas * gemm1_entries(at.paired_end() - 2 * blocks.pairs);
  for (int i = thread; i < kNumKBlocks2 * blocks.pairs; i += threads) {
    const int m_first = i % blocks.pairs * Grouped::kClusterM;
    const uint2 entry = pack_tile(at.expert, i / blocks.pairs, true, before_last_wave, m_first, at.expert_rows,
                                  at.expert_first);
    for (int rank = 0; rank < kCtas; rank++) paired[kCtas * i + rank] = entry;
  }
  if (blocks.rest == 0) return;
  uint2* tiles = queue + kCtas * gemm1_entries(at.paired());
  const int first = (at.single_end - 1) * kNumKBlocks2;
  const bool pads = at.single_end == at.singles && at.singles * kNumKBlocks2 % kCtas != 0;
  for (int i = thread; i < kNumKBlocks2 + pads; i += threads) {
    const int rank = (first + i) % kCtas;
    tiles[first + i] = pack_tile(at.expert, (i - rank) & kNBlockMask, false, before_last_wave,
                                 blocks.pairs * Grouped::kClusterM, at.expert_rows, at.expert_first);
  }
}

// What route_permute counted: entries for each pair of n_blocks, experts that have rows, rows with padding.
struct TileQueues {
  int long_entries, short_entries, experts, rows;
};
__device__ __forceinline__ TileQueues read_tile_queues(const TileQueues* queues) {
  const int4 v = __ldcg(reinterpret_cast<const int4*>(queues));
  return {v.x, v.y, v.z, v.w};
}
// A GEMM's entry; kNoTile beyond its last.
__device__ __forceinline__ uint2 queue_entry(const uint2* queue, int entries, int position) {
  return position < entries ? __ldcg(queue + position) : make_uint2(kNoTile, 0);
}

// ---- schedulers ----

// gemm1: cluster c takes entries c, c + clusters, ... of the queue. So the clusters have equally many long entries, and
// equally many short ones, to within one. Of its next long and its next short entry a cluster takes that of the lower
// expert first, so that neighbours use the same expert's weights at the same time. Both are read one tile ahead.
struct StaticTileScheduler {
  const uint2* queue;
  int clusters, long_entries, entries;
  int position[2];  // of the next long and the next short entry
  uint2 head[2];    // what is there
  // With kOddNBlocks: the expert of CTA 0's tile in both heads. Both CTAs choose by it, as their own may differ.
  unsigned first_expert[Grouped::kOddNBlocks ? 2 : 1];

  // singles: with kOddNBlocks, the number of m_blocks without a pair. Their entries are then treated as the short ones,
  // all others as the long ones.
  __device__ StaticTileScheduler(const uint2* queue_, const TileQueues& queues, int clusters_, int singles = 0)
      : queue(queue_), clusters(clusters_), long_entries(gemm1_entries(queues.long_entries)),
        entries(gemm1_entries(queues.long_entries + queues.short_entries)) {
    if constexpr (Grouped::kOddNBlocks) {
      long_entries = gemm1_entries(queues.long_entries + queues.short_entries - singles);
      entries = long_entries + gemm1_entries(singles);
    }
    // the first short entry whose position is the cluster's, modulo clusters
    position[0] = blockIdx.x / Grouped::kClusterCtas;
    position[1] = long_entries + (position[0] + clusters - long_entries % clusters) % clusters;
    read(0), read(1);
  }
  __device__ void read(int which) {
    const int end = which ? entries : long_entries;
    if constexpr (Grouped::kOddNBlocks) {
      constexpr int kCtas = Grouped::kClusterCtas;
      head[which] = queue_entry(queue, kCtas * end, kCtas * position[which] + blockIdx.x % kCtas);
      first_expert[which] = queue_entry(queue, kCtas * end, kCtas * position[which]).x & kExpertMask;
    } else {
      head[which] = queue_entry(queue, end, position[which]);
    }
  }
  // Whether the next long entry's expert is not behind the next short one's.
  __device__ bool long_is_next() const {
    if constexpr (Grouped::kOddNBlocks) return first_expert[0] <= first_expert[1];
    else return (head[0].x & kExpertMask) <= (head[1].x & kExpertMask);
  }
  // Whether there is another tile; does not wait for the entries that are on their way.
  __device__ bool has_next() const { return position[0] < long_entries || position[1] < entries; }

  // The next tile; false when there is none.
  __device__ bool get_next_tile(WorkTile& tile, int rank) {
    if (!has_next()) return false;
    if (long_is_next()) {
      tile = unpack_tile(head[0], rank);
      position[0] += clusters;
      read(0);
    } else {
      tile = unpack_tile(head[1], rank);
      position[1] += clusters;
      read(1);
    }
    return true;
  }
};

// gemm2: a cluster takes the queue's next entry by a counter in global memory, because clusters begin at different
// times: each when gemm1 leaves two SMs. A cluster's first entry is the one of its own number. The producer of its CTA
// 0 draws all others from the counter and sends them to both CTAs.
template <class Smem>
struct DynamicTileScheduler {
  Smem& smem;
  const uint2* queue;
  int entries, rank;

  // The cluster's nth tile; false behind the last.
  __device__ __forceinline__ bool get_tile(WorkTile& tile, int nth) const {
    uint2 entry;
    if (nth == 0) {
      entry = queue_entry(queue, entries, blockIdx.x / Grouped::kClusterCtas);
    } else {
      const int stage = (nth - 1) % Grouped::kSchedulerStages;
      smem.tile_full[stage].wait((nth - 1) / Grouped::kSchedulerStages % 2);
      entry = make_uint2(smem.tile_entry[stage][0], smem.tile_entry[stage][1]);
    }
    tile = unpack_tile(entry, rank);
    return entry.x != kNoTile;
  }
  // For one thread of each CTA, before it loads tile nth's last K block: sends the next entry.
  //
  // There is no barrier for an empty stage, because the entry that is overwritten, tile nth + 1 - kSchedulerStages',
  // has been read: to load the K block before, this thread waited until both CTAs' consumers had released the one
  // kStages earlier, so they are at most kTilesAhead tiles behind.
  __device__ __forceinline__ void publish(uint2 next, int nth) const {
    constexpr int kTilesAhead = (Smem::kStages + 1) / kNumKBlocks2;
    static_assert(kTilesAhead < Grouped::kSchedulerStages, "the entry that is overwritten has been read");
    const int stage = nth % Grouped::kSchedulerStages;
    smem.tile_full[stage].arrive_and_expect(sizeof(uint2));
    if (rank != 0) return;
    for (int cta = 0; cta < Grouped::kClusterCtas; cta++) {
      st_async_cluster(&smem.tile_entry[stage][0], next.x, smem.tile_full[stage], cta);
      st_async_cluster(&smem.tile_entry[stage][1], next.y, smem.tile_full[stage], cta);
    }
  }
};

}  // namespace hopper_fused
