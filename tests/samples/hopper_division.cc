// Prints how hopper_fused's kernels divide their work, one line per tile. Questions:
//   most                                  the most m_blocks that few tokens can have
//   few CTAS M_BLOCKS                     one launch: each CTA's n_blocks, by NBlockScheduler
//   static CTAS N_BLOCKS ROWS...          many tokens: each CTA's tiles by StaticTileScheduler; ROWS: of each expert
//   dynamic CTAS N_BLOCKS ROWS...         each queue entry's two tiles; in place of a CTA, 2 * entry + rank
//   before_last_wave CTAS N_BLOCKS ROWS...  a bit for each expert without a tile in gemm1's last wave
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "grouped_layer.cuh"
#include "n_block_scheduler.cuh"

#include "../hopper_fused/hopper_queue.h"

using namespace hopper_fused;

static void few_tokens(int m_blocks) {
  auto s = std::make_unique<FusedSmem>();
  s->num_m_blocks = m_blocks;
  for (int n = 0; n < m_blocks; n++) s->m_block[n].expert = n;  // identifies the m_block in the output
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    Gemm1Tile tile;
    for (NBlockScheduler scheduler(*s); scheduler.get_next_tile(tile);)
      printf("%u %d %d %d %d\n", blockIdx.x, tile.m_block_index, tile.m_block.expert, tile.n_block, tile.num_n_blocks);
  }
}

static void print(unsigned cta, const WorkTile& tile, bool more) {
  printf("%u %d %d %d %d %d %d %d\n", cta, tile.expert, tile.n_block, tile.m_first, tile.m_rows, tile.normal,
         tile.multicast_w, more);
}

static int clusters() { return gridDim.x / Grouped::kClusterCtas; }

static void static_schedule(const Queue& queue) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    StaticTileScheduler scheduler(queue.entries.data(), queue.sizes, clusters(), queue.singles);
    for (WorkTile tile; scheduler.get_next_tile(tile, blockIdx.x % Grouped::kClusterCtas);)
      print(blockIdx.x, tile, scheduler.has_next());
  }
}

static void dynamic_schedule(const Queue& queue) {
  for (int rank = 0; rank < Grouped::kClusterCtas; rank++)
    for (unsigned entry = 0; entry < queue.entries.size(); entry++)
      print(Grouped::kClusterCtas * entry + rank, unpack_tile(queue.entries[entry], rank), true);
}

static void before_last_wave(const Queue& queue) {
  unsigned long long experts = 0;
  for (const QueuePlace& at : queue.places)
    experts |= (unsigned long long)at.before_last_wave(clusters()) << at.expert;
  printf("%llu\n", experts);
}

int main(int count, char** arguments) {
  const char* question = arguments[1];
  if (!strcmp(question, "most")) return printf("%d\n", Config::kMaxMBlocks) < 0;
  gridDim.x = atoi(arguments[2]);
  if (!strcmp(question, "few")) {
    few_tokens(atoi(arguments[3]));
  } else {
    std::vector<int> rows;
    for (int e = 0; e < kNumLocalExperts; e++) rows.push_back(atoi(arguments[4 + e]));
    const Queue queue(rows, atoi(arguments[3]) / 2, strcmp(question, "dynamic") != 0, clusters());
    (!strcmp(question, "static")    ? static_schedule
     : !strcmp(question, "dynamic") ? dynamic_schedule
                                    : before_last_wave)(queue);
  }
}
