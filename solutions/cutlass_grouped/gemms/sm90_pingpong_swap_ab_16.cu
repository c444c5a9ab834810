// pingpong_swap_ab_16: 128 weight rows x 16 rows a tile, one warpgroup each.
#include "cutlass_grouped/gemms/sm90_gemm.cuh"

const GroupedGemm kPingpongSwapAB16 = PingpongGemm<true, 128, 16>::described("pingpong_swap_ab_16");
