// pingpong_64_rows: a tile of 64 rows x 128 weight rows for each of two warpgroups; two CTAs share the rows.
#include "cutlass_grouped/gemms/sm90_gemm.cuh"

const GroupedGemm kPingpong64Rows = PingpongGemm<false, 64, 128, 1, 2>::described("pingpong_64_rows");
