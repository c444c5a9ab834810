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

// The queue that route_permute writes, of gemm1 or of gemm2 for so many n_blocks.
struct Queues {
  TileQueues sizes = {};
  std::vector<QueuePlace> places;
  std::vector<uint2> entries;
  int singles = 0;
  Queues(const unsigned* count, int n_blocks, bool is_gemm1) {
    for (int e = 0; e < kNumLocalExperts; e++) {
      const int rows = (count[e] + Grouped::kRowAlign - 1) / Grouped::kRowAlign * Grouped::kRowAlign;
      const MBlocks blocks(rows);
      sizes.long_entries += blocks.long_entries(), sizes.short_entries += blocks.short_entries();
      singles += blocks.rest > 0;
      places.push_back({e, rows, sizes.rows, sizes.long_entries, sizes.short_entries, 0, 0, singles, 0});
      sizes.rows += rows, sizes.experts += rows > 0;
    }
    const bool by_cta = is_gemm1 && Grouped::kOddNBlocks;  // two words for each CTA
    entries.resize(by_cta ? 2 * (gemm1_entries(sizes.long_entries + sizes.short_entries - singles) + gemm1_entries(singles))
                          : (sizes.long_entries + sizes.short_entries) * (n_blocks / 2));
    for (QueuePlace& at : places) {
      at.long_entries = sizes.long_entries, at.short_entries = sizes.short_entries, at.singles = singles;
      if (at.expert_rows == 0) continue;
      const bool before = at.before_last_wave(gridDim.x / Grouped::kClusterCtas);
      for (int thread = 0; thread < 3; thread++) {
        if (by_cta) write_gemm1_entries(entries.data(), at, before, thread, 3);
        else write_entries(entries.data(), n_blocks / 2, at, before, thread, 3);
      }
    }
  }
};

static void static_schedule(const Queues& queues) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    StaticTileScheduler scheduler(queues.entries.data(), queues.sizes, gridDim.x / Grouped::kClusterCtas, queues.singles);
    for (WorkTile tile; scheduler.get_next_tile(tile, blockIdx.x % Grouped::kClusterCtas);)
      print(blockIdx.x, tile, scheduler.has_next());
  }
}

static void dynamic_schedule(const Queues& queues) {
  for (int rank = 0; rank < Grouped::kClusterCtas; rank++)
    for (unsigned entry = 0; entry < queues.entries.size(); entry++)
      print(Grouped::kClusterCtas * entry + rank, unpack_tile(queues.entries[entry], rank), true);
}

static void before_last_wave(const Queues& queues) {
  unsigned long long experts = 0;
  for (const QueuePlace& at : queues.places)
    experts |= (unsigned long long)at.before_last_wave(gridDim.x / Grouped::kClusterCtas) << at.expert;
  printf("%llu\n", experts);
}

int main(int count, char** arguments) {
  const char* question = arguments[1];
  if (!strcmp(question, "most")) return printf("%d\n", Config::kMaxMBlocks) < 0;
  gridDim.x = atoi(arguments[2]);
  if (!strcmp(question, "few")) {
    few_tokens(atoi(arguments[3]));
  } else {
    unsigned rows[kNumLocalExperts];
    for (int e = 0; e < kNumLocalExperts; e++) rows[e] = atoi(arguments[4 + e]);
    const Queues queues(rows, atoi(arguments[3]), strcmp(question, "dynamic") != 0);
    (!strcmp(question, "static")    ? static_schedule
     : !strcmp(question, "dynamic") ? dynamic_schedule
                                    : before_last_wave)(queues);
  }
}
