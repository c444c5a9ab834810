// pingpong_few64: 128 weight columns x 64 rows a tile, one warpgroup each.
#include "sm90_gemm.cuh"

const GroupedGemm kPingpongFew64 = PingpongGemm<true, 128, 64>::described("pingpong_few64");
