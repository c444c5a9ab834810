// few_rows_gemm1: launch of gemm1 for batches in which no expert has more than kRowAlign rows. h has two parts.
#pragma once
#include "hopper_fused/many_tokens/grouped_layer.cuh"

namespace hopper_fused {

cudaError_t prepare_few_rows_gemm1();  // once for each device
// w1: a map with boxes of 64 weight rows.
cudaError_t launch_few_rows_gemm1(const GroupedArgs& args, const CUtensorMap& w1, cudaStream_t stream);

}  // namespace hopper_fused
