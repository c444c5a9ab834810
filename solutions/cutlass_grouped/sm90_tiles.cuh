// sm90_tiles: the products of a build for Hopper, each compiled in its own file, all at once.
#pragma once
#include "grouped_gemm.cuh"

extern const GroupedGemm kPingpongFew16, kPingpongFew32, kPingpongFew64, kPingpong64Rows, kPingpong64Columns;
extern const GroupedGemm kCooperative128Rows, kCooperative128Columns, kCooperative256, kCooperative256Rows;
