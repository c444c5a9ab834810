// regimes: which launches compute the layer: the four for many tokens at every number of tokens, since the one launch
// for few tokens adds in another order. In place of hopper_fused/regimes.cuh.
#pragma once
#include "hopper_fused_invariant/few_rows_gemm1.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "common/cuda/host/weight_maps.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

constexpr bool kOneLaunch = false;
// GEMMs that convert MXFP4 weights in shared memory give these bits with usual scales, but not with all
// (mxfp4/converted/unusual.cuh). mxfp4_gemm1 and mxfp4_gemm2 serve every number of tokens.
constexpr bool kConvertsWeights = false;
// few_rows_gemm1 is faster than grouped_gemm1 where the latter has up to so many tiles, about one for each CTA
// (measured with 1 to 12 experts that have rows).
constexpr int kFewTiles = 128;

inline cudaError_t prepare_gemm1() {
  const cudaError_t error = prepare_grouped_gemm1();
  return error != cudaSuccess ? error : prepare_few_rows_gemm1();
}

// Whether few_rows_gemm1 takes the call. rows: the mean over routings; each is about one expert with rows.
inline bool has_few_rows(const GroupedArgs& args, int h_split) {
  const int rows = args.num_tokens * kTokenExperts * kNumRoutedLocalExperts / kNumExperts;
  return h_split == 2 && args.num_tokens <= Grouped::kRowAlign && rows * Grouped::kNumNBlocks1 <= kFewTiles;
}

inline void encode_gemm1_map(CUtensorMap* map, const void* w1, const GroupedArgs& args, int h_split) {
  if (has_few_rows(args, h_split)) encode_w1_map(map, w1, kMmaM / (2 * kAtomRows));
  else encode_w1_map(map, w1, Grouped::kW1BoxGroups, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

inline cudaError_t launch_gemm1(const GroupedArgs& args, const CUtensorMap& w1_map, int h_split, cudaStream_t stream) {
  if (has_few_rows(args, h_split)) return launch_few_rows_gemm1(args, w1_map, stream);
  return launch_grouped_gemm1(args, w1_map, h_split, stream);
}

}  // namespace hopper_fused
