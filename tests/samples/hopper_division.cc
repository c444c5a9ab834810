// Prints which work each block of hopper_fused's kernels takes: `few BLOCKS SEGMENTS`, of which `most` tells how many there
// may be; with a count of rows for each of the 32 experts `walk BLOCKS COLUMN_TILES ROWS...`, `draw` with the same, where
// block stands for twice a number and the rank, and `early`, a bit an expert.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "many_layer.cuh"

static void few(int segments) {
  auto s = std::make_unique<Smem>();
  s->num_segments = segments;
  for (int n = 0; n < segments; n++) s->segment[n].expert = n;  // told apart by it
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    Tile tile;
    for (Tiles tiles(*s); tiles.take(tile);)
      printf("%u %d %d %d %d\n", blockIdx.x, tile.number, tile.segment.expert, tile.unit, tile.width);
  }
}

static void print(unsigned block, const Item& item, bool more) {
  printf("%u %d %d %d %d %d %d %d\n", block, item.expert, item.column, item.first, item.n, item.wide, item.shared, more);
}

// The lists that many_route writes, for so many column tiles.
struct Lists {
  Plan plan = {};
  std::vector<ListPlace> places;
  std::vector<uint2> tiles;
  Lists(const unsigned* count, int column_tiles) {
    for (int e = 0; e < kLocal; e++) {
      const int rows = (count[e] + kRows16 - 1) / kRows16 * kRows16;
      const Cut cut(rows);
      plan.longs += cut.longs(), plan.shorts += cut.shorts();
      places.push_back({e, rows, plan.rows, plan.longs, plan.shorts, 0, 0});
      plan.rows += rows, plan.experts += rows > 0;
    }
    tiles.resize((plan.longs + plan.shorts) * (column_tiles / 2));
    for (ListPlace& at : places) {
      at.longs = plan.longs, at.shorts = plan.shorts;
      if (at.rows > 0)
        for (int thread = 0; thread < 3; thread++)
          write_tiles(tiles.data(), column_tiles / 2, at, at.early(gridDim.x / kCluster), thread, 3);
    }
  }
};

static void walk(const Lists& lists) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    Item item;
    for (Walk walk(lists.tiles.data(), lists.plan, gridDim.x / kCluster); walk.take(item, blockIdx.x % kCluster);)
      print(blockIdx.x, item, walk.more());
  }
}

static void draw(const Lists& lists) {
  for (int rank = 0; rank < kCluster; rank++)
    for (unsigned number = 0; number < lists.tiles.size(); number++)
      print(kCluster * number + rank, unpacked(lists.tiles[number], rank), true);
}

static void early(const Lists& lists) {
  unsigned experts = 0;
  for (const ListPlace& at : lists.places) experts |= (unsigned)at.early(gridDim.x / kCluster) << at.expert;
  printf("%u\n", experts);
}

int main(int count, char** arguments) {
  if (!strcmp(arguments[1], "most")) return printf("%d\n", kMaxSegments) < 0;
  gridDim.x = atoi(arguments[2]);
  if (!strcmp(arguments[1], "few")) {
    few(atoi(arguments[3]));
  } else {
    unsigned rows[kLocal];
    for (int e = 0; e < kLocal; e++) rows[e] = atoi(arguments[4 + e]);
    const Lists lists(rows, atoi(arguments[3]));
    const auto question = !strcmp(arguments[1], "walk") ? walk : !strcmp(arguments[1], "draw") ? draw : early;
    question(lists);
  }
}
