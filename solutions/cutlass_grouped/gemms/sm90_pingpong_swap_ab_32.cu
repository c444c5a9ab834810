// pingpong_swap_ab_32: a tile of 128 weight rows x 32 rows for each of two warpgroups.
#include "cutlass_grouped/gemms/sm90_gemm.cuh"

const GroupedGemm kPingpongSwapAB32 = PingpongGemm<true, 128, 32>::described("pingpong_swap_ab_32");
