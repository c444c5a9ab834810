// sm90_tiles: the list of the GEMMs of a build for Hopper; tiles.py chooses among them.
#include "cutlass_grouped/gemms/sm90_tiles.cuh"

const GroupedGemm* const* tiles(int* count) {
  static const GroupedGemm* const all[] = {&kPingpongSwapAB16, &kPingpongSwapAB32, &kPingpong64Rows,
                                           &kCooperative128Rows};
  *count = sizeof(all) / sizeof(all[0]);
  return all;
}
