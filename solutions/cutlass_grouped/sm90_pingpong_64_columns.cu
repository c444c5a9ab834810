// pingpong_64_columns: 64 rows x 128 weight columns a tile, one warpgroup each; two neighbours share the weights.
#include "sm90_gemm.cuh"

const GroupedGemm kPingpong64Columns = PingpongGemm<false, 64, 128, 2, 1>::described("pingpong_64_columns");
