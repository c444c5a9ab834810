// tile_scheduler: which tiles of gemm1 and of gemm2 a CTA computes. Static: it follows from the number of CTAs and of
// m_blocks, so every CTA knows it without a queue.
//
// gemm1  A tile is one m_block by one n_block. All tiles form one list, m_block by m_block, which the CTAs take from
//        the front, side by side: wave after wave, then a tail. So h of the first m_blocks is complete early, and gemm2
//        begins with them while other CTAs still compute tiles. The last tiles may be split along K between two CTAs.
// gemm2  A column tile is kColumnTile output columns, for all rows. Every CTA owns as many as go around; the rest are
//        shared, each by up to kMaxSharingCtas CTAs ("sharing CTAs", the first of the grid), which take m_blocks in
//        turn. With 112 column tiles, 132 CTAs own none: 112 have a shared tile, each alone, and 20 have no gemm2.
//
// Sharing CTAs have more of gemm2, so the others get more of gemm1.
#pragma once
#include <cuda_runtime.h>

#include "mma_fused/one_launch/config.cuh"

namespace mma_fused {

// How a grid divides the column tiles.
struct ColumnTilePartition {
  int own;           // column tiles of each CTA for itself
  int shared;        // the rest, fewer than CTAs
  int sharing_ctas;  // of each shared column tile
  __host__ __device__ explicit ColumnTilePartition(int ctas)
      : own(Config::kNumColumnTiles / ctas), shared(Config::kNumColumnTiles % ctas), sharing_ctas(1) {
    if (shared > 0) sharing_ctas = ctas / shared < Config::kMaxSharingCtas ? ctas / shared : Config::kMaxSharingCtas;
  }
  // Column tiles that a CTA works on, at most: its own, then a shared one.
  __host__ __device__ int max_local_tiles() const { return own + (shared > 0); }
};

// What a CTA computes of gemm1 at a time: a tile, or one of the two parts of a split-K tile.
struct WorkItem {
  int tile;            // m_block * kNumNBlocks + n_block; -1: none
  int first_k, end_k;  // K blocks

  __host__ __device__ bool is_first_part() const { return end_k < kNumKBlocks1; }
  __host__ __device__ bool is_second_part() const { return first_k > 0; }
};

// Of one CTA. The constructor assigns column tiles; schedule_gemm1() needs the number of m_blocks, known after routing.
struct TileScheduler {
  int ctas, cta;
  int num_m_blocks;
  // gemm1
  int full_waves;                    // in each of which every CTA takes a tile
  int num_whole_tiles;               // of this CTA, those of the full waves included
  int first_tail_tile, tail_stride;  // after the full waves: its first tile, and the distance to its next
  int split_index;                   // of the split-K tile of which it has a part, its last work item; -1: of none
  int split_part, split_tile;        // which part, 0 or 1; the tile in the list
  // gemm2
  int own_tiles;
  int shared_tile;                        // -1: none
  int first_sharing_cta, sharing_stride;  // the CTAs that share it: the first, and the distance from one to the next
  int sharing_rank, sharing_ctas;         // this CTA takes m_blocks m with m % sharing_ctas == sharing_rank

  __host__ __device__ TileScheduler(int ctas_, int cta_) : ctas(ctas_), cta(cta_) {
    const ColumnTilePartition tiles(ctas);
    own_tiles = tiles.own, sharing_ctas = tiles.sharing_ctas, sharing_stride = tiles.shared;
    const bool shares = cta < tiles.shared * sharing_ctas;
    sharing_rank = shares ? cta / tiles.shared : 0;
    first_sharing_cta = shares ? cta % tiles.shared : 0;
    shared_tile = shares ? own_tiles * ctas + first_sharing_cta : -1;
  }

  __host__ __device__ void schedule_gemm1(int num_m_blocks_) {
    num_m_blocks = num_m_blocks_;
    // ..._after: from the end of a CTA's gemm1 to the end of the launch. The others' gemm2 is shorter, but theirs are
    // the list's last tiles, whose m_blocks, the last ones, the sharing CTAs still have to multiply:
    //   sharing CTAs  gemm1 |<-- sharing_after: gemm2 of the first m_blocks, then of the last -->|
    //   others        gemm1, the list's last tiles |<-- last_time: of the last m_blocks alone -->|
    // Times are relative. A K block of gemm2, with its waits for h and more sums over warps, as 5/4 of one of gemm1:
    // measured on an H200, where that takes 1 to 2% off a call from 14 tokens on.
    constexpr int kKBlockTime1 = 4, kKBlockTime2 = 5;
    constexpr int kTileTime = (kNumKBlocks1 + Config::kWarps - 1) / Config::kWarps * kKBlockTime1;
    constexpr int kFirstPartTime = Config::kSplitKBlocks * kKBlockTime1;
    constexpr int kColumnTileTime =
        (kNumKBlocks2 + Config::kGemm2Warps - 1) / Config::kGemm2Warps * kKBlockTime2;  // of an m_block
    const int tiles = num_m_blocks * Config::kNumNBlocks, sharing = sharing_stride * sharing_ctas,
              others = ctas - sharing;
    const auto sharing_time = [&](int n) {  // of a sharing CTA in gemm2, for n m_blocks
      return (own_tiles * n + (sharing > 0 ? (n + sharing_ctas - 1) / sharing_ctas : 0)) * kColumnTileTime;
    };
    const int last_m_blocks = (others + Config::kNumNBlocks - 1) / Config::kNumNBlocks;  // of the others' last tiles
    const int last_time = sharing_time(last_m_blocks < num_m_blocks ? last_m_blocks : num_m_blocks);
    const int sharing_after = sharing_time(num_m_blocks), own_time = own_tiles * num_m_blocks * kColumnTileTime;
    const int others_after = own_time > last_time ? own_time : last_time;

    // Binary search for the least `time` of the launch in which all tiles fit. The mean of the CTAs' times is the least
    // there can be, and with a tile's time more all fit, as a CTA leaves less than that unused. Two CTAs that have time
    // for a part besides their whole tiles take a split-K tile.
    const bool may_split = Config::kSplitKBlocks > 0 && ctas <= 2 * Config::kMaxSplitTiles;
    int time = (tiles * kTileTime + sharing * sharing_after + others * others_after) / ctas;
    const auto fit = [&](int after) { return time > after ? (time - after) / kTileTime : 0; };  // whole tiles of a CTA
    const auto split_fit = [&](int n, int after) {  // split-K tiles of n CTAs
      return may_split && time - after - fit(after) * kTileTime >= kTileTime - kFirstPartTime ? n / 2 : 0;
    };
    const auto whole_fit = [&] { return sharing * fit(sharing_after) + others * fit(others_after); };
    const auto all_fit = [&] {
      return whole_fit() + split_fit(sharing, sharing_after) + split_fit(others, others_after) >= tiles;
    };
    int step = 1;
    while (2 * step <= kTileTime) step *= 2;
    for (; step > 0; step /= 2) {  // of 2 * step > kTileTime values from `time` on
      time += step - 1;
      const bool enough = all_fit();
      time += enough ? 1 - step : 1;
    }

    // As few tiles as possible are split: none unless all that fit as a whole are taken. If none is, more may fit than
    // there are, so sharing CTAs take one fewer than fit, and only as many of them as needed another one: the last
    // first, as these may have fewer m_blocks in gemm2.
    const int splits = tiles > whole_fit() ? tiles - whole_fit() : 0, most = split_fit(others, others_after);
    const int others_splits = splits < most ? splits : most, sharing_splits = splits - others_splits;
    full_waves = fit(sharing_after) - (splits == 0 && fit(sharing_after) > 0);
    const int tail = tiles - splits - full_waves * ctas, others_tail = others * (fit(others_after) - full_waves);
    const int one_more = tail > others_tail ? tail - others_tail : 0;  // sharing CTAs that take another tile
    // The list: full waves; the sharing CTAs' other tiles and split-K tiles; the others' tiles; their split-K tiles.
    const int order = cta < sharing ? sharing - 1 - cta : cta - sharing;
    tail_stride = others;
    if (cta < sharing) {
      first_tail_tile = full_waves * ctas + order;
      num_whole_tiles = full_waves + (order < one_more);
      split_index = order / 2 < sharing_splits ? order / 2 : -1;
      split_tile = full_waves * ctas + order / 2;
    } else {
      first_tail_tile = full_waves * ctas + one_more + sharing_splits + order;
      num_whole_tiles = full_waves + (tail - one_more - order + others - 1) / others;
      split_index = order / 2 < others_splits ? sharing_splits + order / 2 : -1;
      split_tile = tiles - others_splits + order / 2;
    }
    split_part = order % 2;
  }

  // gemm1: the CTA's work item number i, in the order of the list; a part of a split-K tile is the last one.
  __host__ __device__ WorkItem work_item(int i) const {
    if (i < num_whole_tiles)
      return {i < full_waves ? i * ctas + cta : first_tail_tile + (i - full_waves) * tail_stride, 0, kNumKBlocks1};
    if (i > num_whole_tiles || split_index < 0) return {-1, 0, 0};
    return {split_tile, split_part * Config::kSplitKBlocks * Config::kWarps,
            split_part == 0 ? Config::kSplitKBlocks * Config::kWarps : kNumKBlocks1};
  }

  // gemm2: the CTA's column tiles are numbered 0 to num_local_tiles() - 1; the last may be a shared one.
  __host__ __device__ int num_local_tiles() const { return own_tiles + (shared_tile >= 0); }
  __host__ __device__ int column_tile(int local_tile) const {
    return local_tile < own_tiles ? local_tile * ctas + cta : shared_tile;
  }
  // Moves to the next (m_block, column tile) of the CTA: m_block by m_block, for each of its column tiles, the shared
  // one in this CTA's turn. Begin with m_block 0 and local_tile -1; false: there is none.
  __host__ __device__ bool next_gemm2(int& m_block, int& local_tile) const {
    if (num_local_tiles() == 0) return false;
    if (Config::kShortTiles && own_tiles == 0) {  // without divisions, of which a tile has no time for one each m_block
      m_block = local_tile < 0 ? sharing_rank : m_block + sharing_ctas;
      local_tile = 0;
      return m_block < num_m_blocks;
    }
    do {
      if (++local_tile >= num_local_tiles()) local_tile = 0, m_block++;
    } while (m_block < num_m_blocks && local_tile >= own_tiles && m_block % sharing_ctas != sharing_rank);
    return m_block < num_m_blocks;
  }
};

}  // namespace mma_fused
