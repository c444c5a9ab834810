// cooperative_128_rows: 128 rows x 128 weight rows a tile, two warpgroups together; two neighbours share the rows.
#include "cutlass_grouped/gemms/sm90_gemm.cuh"

const GroupedGemm kCooperative128Rows = CooperativeGemm<false, 128, 128, 1, 2>::described("cooperative_128_rows");
