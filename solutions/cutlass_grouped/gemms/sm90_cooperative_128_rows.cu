// cooperative_128_rows: a tile of 128 rows x 128 weight rows for two warpgroups together; two CTAs share the rows.
#include "cutlass_grouped/gemms/sm90_gemm.cuh"

const GroupedGemm kCooperative128Rows = CooperativeGemm<false, 128, 128, 1, 2>::described("cooperative_128_rows");
