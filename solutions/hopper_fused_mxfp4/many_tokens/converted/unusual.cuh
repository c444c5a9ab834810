// unusual: what converted_gemm1 and converted_gemm2 leave to mxfp4_gemm1 and mxfp4_gemm2. They hold a weight row's
// values as E4M3 in one window of exponents (mxfp4_values.cuh). A group with values that are not in its row's window, or
// a scale that is NaN, makes the layer unusual. mxfp4_gemm1 and mxfp4_gemm2 are launched behind them, with counters of
// their own, and queues that are empty unless the layer is unusual; else they compute all of h and y again.
#pragma once
#include "hopper_fused/many_tokens/grouped_layer.cuh"

namespace hopper_fused {

// Converters set it. A counter of a column pass that there never is: route_permute zeroes it.
constexpr int kUnusualPass = Grouped::kMaxColumnPasses - 1;
static_assert(Grouped::kColumnPasses <= kUnusualPass, "no pass draws entries from it");
__device__ __forceinline__ unsigned* unusual_flag(Counters* counters) { return &counters->next_entry[kUnusualPass]; }

cudaError_t prepare_converted_gemm1();
cudaError_t prepare_converted_gemm2();
cudaError_t launch_converted_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream);
cudaError_t launch_converted_gemm2(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream);
// Behind converted_gemm2 of each column pass: writes the counters of those that follow. args: of converted_gemm2.
cudaError_t launch_queue_unusual(const GroupedArgs& args, Counters* behind, cudaStream_t stream);

}  // namespace hopper_fused
