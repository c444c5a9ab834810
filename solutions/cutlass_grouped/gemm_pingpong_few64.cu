// pingpong_few64: 128 weight columns x 64 rows a tile, one warpgroup each.
#include "grouped_gemm_sm90.cuh"

extern const GroupedGemm kPingpongFew64 = PingpongGemm<true, 128, 64>::described("pingpong_few64");
