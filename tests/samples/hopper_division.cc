// Prints which work each block of hopper_fused's kernels takes: `few BLOCKS SEGMENTS`, `many BLOCKS COLUMN_TILES ROWS...`
// with a count of rows for each of the 32 experts, or `slots` for the ring's at every number of tokens.
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

static void many(int column_tiles, const unsigned* rows) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
    Work work;
    run_warp([&] { work.divide(rows); });
    run_warp([&] {
      Item item;
      for (Walk walk(work, column_tiles, blockIdx.x % kCluster); walk.take(item);)
        if (threadIdx.x == 0)
          printf("%u %d %d %d %d %d %d\n", blockIdx.x, item.expert, item.column, item.first, item.n, item.wide, item.shared);
    });
  }
}

int main(int count, char** arguments) {
  if (!strcmp(arguments[1], "slots")) {
    for (int tokens = 1; tokens <= kMaxTokens; tokens++) {
      const int slots = FewRing(tokens).slots, sums = tokens * kOutPitch * sizeof(float);
      printf("%d %d %d %d\n", tokens, slots, kPool - slots * kSlot - sums, kPool - slots * kSlot - (int)sizeof(Few));
    }
    return 0;
  }
  gridDim.x = atoi(arguments[2]);
  if (!strcmp(arguments[1], "few")) {
    few(atoi(arguments[3]));
  } else {
    unsigned rows[kLocal];
    for (int e = 0; e < kLocal; e++) rows[e] = atoi(arguments[4 + e]);
    many(atoi(arguments[3]), rows);
  }
}
