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
  if (threadIdx.x == 0)
    printf("%u %d %d %d %d %d %d %d\n", block, item.expert, item.column, item.first, item.n, item.wide, item.shared, more);
}

static void walk(const Work& work, int column_tiles) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
    run_warp([&] {
      Item item;
      for (Walk walk(work, column_tiles, blockIdx.x % kCluster); walk.take(item);) {
        const bool more = walk.more();
        print(blockIdx.x, item, more);
      }
    });
}

static void draw(const Work& work, int column_tiles) {
  for (int rank = 0; rank < kCluster; rank++)
    run_warp([&] {
      Item item;
      const Draw draw(work, column_tiles, rank);
      for (int number = 0; draw.take(item, number); number++) print(kCluster * number + rank, item, true);
    });
}

static void early(const Work& work, int column_tiles) {
  run_warp([&] {
    const unsigned early = Lines(work, column_tiles, 0).early();
    if (threadIdx.x == 0) printf("%u\n", early);
  });
}

int main(int count, char** arguments) {
  if (!strcmp(arguments[1], "most")) return printf("%d\n", kMaxSegments) < 0;
  gridDim.x = atoi(arguments[2]);
  if (!strcmp(arguments[1], "few")) {
    few(atoi(arguments[3]));
  } else {
    unsigned rows[kLocal];
    for (int e = 0; e < kLocal; e++) rows[e] = atoi(arguments[4 + e]);
    Work work;
    run_warp([&] { work.divide(rows); });
    const auto question = !strcmp(arguments[1], "walk") ? walk : !strcmp(arguments[1], "draw") ? draw : early;
    question(work, atoi(arguments[3]));
  }
}
