// sm90_tiles: the GEMMs of a build for Hopper, each compiled in its own file, all at once.
#pragma once
#include "cutlass_grouped/gemms/grouped_gemm.cuh"

extern const GroupedGemm kPingpongSwapAB16, kPingpongSwapAB32, kPingpong64Rows, kCooperative128Rows;
