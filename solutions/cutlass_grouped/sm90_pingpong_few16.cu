// pingpong_few16: 128 weight columns x 16 rows a tile, one warpgroup each.
#include "sm90_gemm.cuh"

const GroupedGemm kPingpongFew16 = PingpongGemm<true, 128, 16>::described("pingpong_few16");
