// cooperative_256: 256 rows x 128 weight columns a tile, two warpgroups together.
#include "sm90_gemm.cuh"

const GroupedGemm kCooperative256 = CooperativeGemm<false, 256, 128>::described("cooperative_256");
