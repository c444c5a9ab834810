// cooperative_256_rows: 256 rows x 128 weight columns a tile, two warpgroups together; two neighbours share the rows.
#include "sm90_gemm.cuh"

const GroupedGemm kCooperative256Rows = CooperativeGemm<false, 256, 128, 1, 2>::described("cooperative_256_rows");
