// pingpong_swap_ab_16: a tile of 128 weight rows x 16 rows for each of two warpgroups.
#include "cutlass_grouped/gemms/sm90_gemm.cuh"

const GroupedGemm kPingpongSwapAB16 = PingpongGemm<true, 128, 16>::described("pingpong_swap_ab_16");
