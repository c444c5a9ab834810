// pingpong_few32: 128 weight columns x 32 rows a tile, one warpgroup each.
#include "sm90_gemm.cuh"

const GroupedGemm kPingpongFew32 = PingpongGemm<true, 128, 32>::described("pingpong_few32");
