// Prints which work each block of hopper_fused's kernels takes: `few BLOCKS SEGMENTS`, of which `most` tells how many there
// may be; with a count of rows for each of the 32 experts `walk BLOCKS COLUMN_TILES ROWS...`, `draw` with the same, where
// block stands for twice a number and the rank, and `early`, a bit an expert.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "many_tokens.cuh"

static void few_tokens(int chunks) {
  auto s = std::make_unique<FusedSmem>();
  s->num_chunks = chunks;
  for (int n = 0; n < chunks; n++) s->chunk[n].expert = n;  // told apart by it
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    SliceTile tile;
    for (SliceScheduler tiles(*s); tiles.take(tile);)
      printf("%u %d %d %d %d\n", blockIdx.x, tile.number, tile.chunk.expert, tile.slice, tile.width);
  }
}

static void print(unsigned block, const WorkTile& tile, bool more) {
  printf("%u %d %d %d %d %d %d %d\n", block, tile.expert, tile.column, tile.first, tile.n, tile.normal, tile.shared, more);
}

// The lists that many_route writes, for so many column tiles.
struct Lists {
  TileQueues plan = {};
  std::vector<QueuePlace> expert_rows;
  std::vector<uint2> tiles;
  Lists(const unsigned* count, int column_tiles) {
    for (int e = 0; e < kLocal; e++) {
      const int rows = (count[e] + kRowAlign - 1) / kRowAlign * kRowAlign;
      const RowSplit cut(rows);
      plan.long_tiles += cut.long_tiles(), plan.short_tiles += cut.short_tiles();
      expert_rows.push_back({e, rows, plan.rows, plan.long_tiles, plan.short_tiles, 0, 0});
      plan.rows += rows, plan.experts += rows > 0;
    }
    tiles.resize((plan.long_tiles + plan.short_tiles) * (column_tiles / 2));
    for (QueuePlace& at : expert_rows) {
      at.long_tiles = plan.long_tiles, at.short_tiles = plan.short_tiles;
      if (at.rows > 0)
        for (int thread = 0; thread < 3; thread++)
          write_tiles(tiles.data(), column_tiles / 2, at, at.early(gridDim.x / kClusterCtas), thread, 3);
    }
  }
};

static void scheduler(const Lists& lists) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    WorkTile tile;
    for (StaticTileScheduler scheduler(lists.tiles.data(), lists.plan, gridDim.x / kClusterCtas); scheduler.take(tile, blockIdx.x % kClusterCtas);)
      print(blockIdx.x, tile, scheduler.more());
  }
}

static void draw(const Lists& lists) {
  for (int rank = 0; rank < kClusterCtas; rank++)
    for (unsigned number = 0; number < lists.tiles.size(); number++)
      print(kClusterCtas * number + rank, unpack_tile(lists.tiles[number], rank), true);
}

static void early(const Lists& lists) {
  unsigned experts = 0;
  for (const QueuePlace& at : lists.expert_rows) experts |= (unsigned)at.early(gridDim.x / kClusterCtas) << at.expert;
  printf("%u\n", experts);
}

int main(int count, char** arguments) {
  if (!strcmp(arguments[1], "most")) return printf("%d\n", kMaxChunks) < 0;
  gridDim.x = atoi(arguments[2]);
  if (!strcmp(arguments[1], "few")) {
    few_tokens(atoi(arguments[3]));
  } else {
    unsigned rows[kLocal];
    for (int e = 0; e < kLocal; e++) rows[e] = atoi(arguments[4 + e]);
    const Lists lists(rows, atoi(arguments[3]));
    const auto question = !strcmp(arguments[1], "walk") ? scheduler : !strcmp(arguments[1], "draw") ? draw : early;
    question(lists);
  }
}
