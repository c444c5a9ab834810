// sm90_tiles: the products of a build for Hopper, each compiled in its own file, all at once.
#pragma once
#include "grouped_gemm.cuh"

extern const GroupedGemm kPingpongFew16, kPingpongFew32, kPingpong64Rows, kCooperative128Rows;
