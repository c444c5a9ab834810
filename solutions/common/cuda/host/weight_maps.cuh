// weight_maps: TMA descriptors of the two GEMMs' weights.
#pragma once
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/host/tensor_map.cuh"

// W13 as [expert][group of 8 rows][half][row][bytes]: a box interleaves 8 rows of each half, row_groups times.
template <int kRowBytes = kHidden, int kBoxBytes = kBlockK>
inline void encode_w1_map(CUtensorMap* map, const void* w1, int row_groups,
                          CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                          CUtensorMapSwizzle narrow_swizzle = CU_TENSOR_MAP_SWIZZLE_NONE) {
  constexpr cuuint64_t kRow = kRowBytes, kGroup = 8 * kRow, kHalf = kIntermediate * kRow;
  encode_tensor_map<5>(map, w1, {kRow, 8, 2, kIntermediate / 8, kNumLocalExperts}, {1, kRow, kHalf, kGroup, 2 * kHalf},
                       {kBoxBytes, 8, 2, (cuuint32_t)row_groups, 1}, l2_promotion, narrow_swizzle);
}

// W2 as [expert and row][bytes].
template <int kRowBytes = kIntermediate, int kBoxBytes = kBlockK>
inline void encode_w2_map(CUtensorMap* map, const void* w2, int rows,
                          CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                          CUtensorMapSwizzle narrow_swizzle = CU_TENSOR_MAP_SWIZZLE_NONE) {
  encode_tensor_map<2>(map, w2, {kRowBytes, (cuuint64_t)kNumLocalExperts * kHidden}, {1, kRowBytes},
                       {kBoxBytes, (cuuint32_t)rows}, l2_promotion, narrow_swizzle);
}
