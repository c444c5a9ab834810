// pingpong_few16: 128 weight columns x 16 rows a tile, one warpgroup each.
#include "grouped_gemm_sm90.cuh"

extern const GroupedGemm kPingpongFew16 = PingpongGemm<true, 128, 16>::described("pingpong_few16");
