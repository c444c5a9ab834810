// pingpong_64: 64 rows x 128 weight columns a tile, one warpgroup each; two neighbours share the rows.
#include "grouped_gemm_sm90.cuh"

extern const GroupedGemm kPingpong64 = PingpongGemm<false, 64, 128, 1, 2>::described("pingpong_64");
