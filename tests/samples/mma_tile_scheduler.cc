// Prints mma_fused's schedule: mma_tile_scheduler CTAS M_BLOCKS. "item CTA TILE FIRST_K END_K SPLIT" for each work item
// of gemm1 of a CTA, in its order; SPLIT: the number of the split-K tile that it is a part of, else -1. "gemm2 CTA
// LOCAL_TILE COLUMN_TILE M_BLOCK" for each m_block that a CTA multiplies for a column tile.
#include <cstdio>
#include <cstdlib>

#include "tile_scheduler.cuh"

using namespace mma_fused;

int main(int, char** arguments) {
  const int ctas = atoi(arguments[1]), m_blocks = atoi(arguments[2]);
  for (int cta = 0; cta < ctas; cta++) {
    TileScheduler scheduler(ctas, cta);
    scheduler.schedule_gemm1(m_blocks);
    WorkItem item;
    for (int i = 0; (item = scheduler.work_item(i)).tile >= 0; i++) {
      const bool part = item.is_first_part() || item.is_second_part();
      printf("item %d %d %d %d %d\n", cta, item.tile, item.first_k, item.end_k, part ? scheduler.split_index : -1);
    }
    for (int m_block = 0, local_tile = -1; scheduler.next_gemm2(m_block, local_tile);)
      printf("gemm2 %d %d %d %d\n", cta, local_tile, scheduler.column_tile(local_tile), m_block);
  }
}
