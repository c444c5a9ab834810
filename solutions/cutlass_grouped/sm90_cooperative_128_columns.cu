// cooperative_128_columns: 128 rows x 128 weight columns a tile, two warpgroups together; two neighbours share the weights.
#include "sm90_gemm.cuh"

const GroupedGemm kCooperative128Columns = CooperativeGemm<false, 128, 128, 2, 1>::described("cooperative_128_columns");
