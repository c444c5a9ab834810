// token_experts: a token's local experts and their weights, chosen here or by the caller.
#pragma once
#include "arguments.cuh"
#include "route.cuh"

// For a whole warp: as route_token, for ids that the caller has chosen. Lane k reads the k-th. An id that is not local
// leaves no bit, and its weight is not read; of an id that comes twice the weights are added, in order of k.
__device__ __forceinline__ void take_ids(const LayerArgs& args, int token, uint32_t* mask, int stride, float* weight) {
  const int lane = threadIdx.x % kWarp;
  const size_t at = (size_t)token * kTopK + lane;
  const int id = lane < kTopK ? __ldg(args.topk_ids + at) : -1;
  // unsigned: an id below the offset, -1 among them, becomes a large number
  const unsigned expert = (unsigned)id - (unsigned)args.local_expert_offset;
  const bool local = expert < (unsigned)kLocal;
  const float own = local ? __ldg(args.topk_weights + at) : 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kTopK; k++) {
    const unsigned other = __shfl_sync(kFullWarp, expert, k);
    const float others = __shfl_sync(kFullWarp, own, k);
    sum += other == expert ? others : 0.0f;
  }
  const unsigned same = __match_any_sync(kFullWarp, expert);
  if (local && lane == __ffs(same) - 1) weight[expert] = sum;
#pragma unroll
  for (int w = 0; w < kMaskWords; w++) {
    const unsigned mine = local && expert / 32 == w ? 1u << expert % 32 : 0u;
    const unsigned all = __reduce_or_sync(kFullWarp, mine);
    if (lane == 0) mask[stride * w] = all;
  }
}

// For a whole warp: writes mask[stride * w], whose bits are local experts 32 w to 32 w + 31, and weight[local expert]
// where the bit is set.
__device__ __forceinline__ void token_experts(
    const LayerArgs& args, int token, uint32_t* mask, int stride, float* weight) {
  if constexpr (kRoutedForm) take_ids(args, token, mask, stride, weight);
  else route_token(args, token, mask, stride, weight);
}
