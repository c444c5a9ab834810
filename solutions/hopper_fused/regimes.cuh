// regimes: which kernels serve how many tokens. hopper_fused_invariant has another version of this file.
#pragma once
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "common/cuda/host/weight_maps.cuh"
#include "common/cuda/layer/weights.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

constexpr bool kOneLaunch = true;  // up to kOneLaunchTokens
// Whether MXFP4 weights are converted in shared memory with many rows per expert (mxfp4/launch_gemms.cuh).
constexpr bool kConvertsWeights = kMxfp4Weights;

inline cudaError_t prepare_gemm1() { return prepare_grouped_gemm1(); }

inline void encode_gemm1_map(CUtensorMap* map, const void* w1, const GroupedArgs&, int) {
  encode_w1_map(map, w1, Grouped::kW1BoxGroups, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

inline cudaError_t launch_gemm1(const GroupedArgs& args, const CUtensorMap& w1_map, int h_split, cudaStream_t stream) {
  return launch_grouped_gemm1(args, w1_map, h_split, stream);
}

}  // namespace hopper_fused
