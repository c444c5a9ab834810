// unusual: what converted_gemm1 and converted_gemm2 leave to mxfp4_gemm1 and mxfp4_gemm2. They hold a weight row's
// values as E4M3 in one window of exponents (mxfp4_values.cuh). A group with values that are not in its row's window, or
// a scale that is NaN, makes the layer unusual. mxfp4_gemm1 and mxfp4_gemm2 are launched behind them, with counters of
// their own, and queues that are empty unless the layer is unusual; else they compute all of h and y again.
//
// A layer that is not unusual has the bits that mxfp4_gemm1 and mxfp4_gemm2 would give it, but where a row's window is
// another one: with groups of zeros whose exponent is above all others', which move it here alone (measured: 12 to 1816 of
// 12 to 22 million values of the output differ), and perhaps with groups far below the others, whose values are subnormal
// in one of two windows (measured to 2^16 below: none differ).
#pragma once
#include "common/cuda/layer/weights.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"

namespace hopper_fused {

// Converters set it. A counter of a column pass that there never is: route_permute zeroes it.
constexpr int kUnusualPass = Grouped::kMaxColumnPasses - 1;
static_assert(Grouped::kColumnPasses <= kUnusualPass, "no pass draws entries from it");
__device__ __forceinline__ unsigned* unusual_flag(Counters* counters) { return &counters->next_entry[kUnusualPass]; }

// The layer's counters, and behind them those of the kernels that compute an unusual layer.
constexpr int kCounterSets = kMxfp4Weights ? 2 : 1;
__host__ __device__ __forceinline__ Counters* counters_of_unusual(Counters* counters) { return counters + 1; }

cudaError_t prepare_converted_gemm1();
cudaError_t prepare_converted_gemm2();
cudaError_t launch_converted_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream);
cudaError_t launch_converted_gemm2(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream);
// Behind converted_gemm2 of each column pass: writes counters_of_unusual for the kernels that follow. args: of
// converted_gemm2.
cudaError_t launch_queue_unusual(const GroupedArgs& args, cudaStream_t stream);

}  // namespace hopper_fused
