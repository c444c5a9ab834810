// token_experts: a token's local experts and their weights, chosen here or by the caller.
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/tokens/route.cuh"
#include "common/cuda/pipeline/threads.cuh"

// Returns an id's local number, which is kNumLocalExperts or more if it is not local: as unsigned, an id below the
// offset, such as -1, becomes large.
__device__ __forceinline__ unsigned local_number(const LayerArgs& args, int id) {
  return (unsigned)id - (unsigned)args.local_expert_offset;
}

// What one slot of a token's ids says. A caller may name an expert in several slots of a token.
struct Slot {
  unsigned expert;  // local number; the other fields mean something for local experts only
  bool first;       // no earlier slot of the token has this expert
  float weight;     // the sum, in order, of the weights of all the token's slots with this expert
};

__device__ __forceinline__ Slot read_slot(const LayerArgs& args, int token, int k) {
  const int* ids = args.topk_ids + (size_t)token * kTopK;
  const int id = ids[k];
  Slot slot = {local_number(args, id), true, 0.0f};
  if (slot.expert < kNumLocalExperts) {
#pragma unroll
    for (int j = 0; j < kTopK; j++) {
      if (ids[j] != id) continue;
      slot.first = slot.first && j >= k;
      slot.weight += args.topk_weights[(size_t)token * kTopK + j];
    }
  }
  return slot;
}

// For a whole warp: writes what route_token writes, for ids that the caller has chosen. Lane k reads the k-th.
__device__ __forceinline__ void take_ids(const LayerArgs& args, int token, uint32_t* mask, int stride, float* weight) {
  const int lane = threadIdx.x % kWarp;
  const Slot slot = lane < kTopK ? read_slot(args, token, lane) : Slot{kNumLocalExperts, false, 0.0f};
  const bool local = slot.expert < kNumLocalExperts;
  if (local && slot.first) weight[slot.expert] = slot.weight;
#pragma unroll
  for (int w = 0; w < kMaskWords; w++) {
    const unsigned mine = local && slot.expert / 32 == w ? 1u << slot.expert % 32 : 0u;
    const unsigned all = __reduce_or_sync(kFullWarp, mine);
    if (lane == 0) mask[stride * w] = all;
  }
}

// For a whole warp: writes mask[stride * w], whose bits are local experts 32 w to 32 w + 31, and weight[local expert]
// where the bit is set.
__device__ __forceinline__ void token_experts(
    const LayerArgs& args, int token, uint32_t* mask, int stride, float* weight) {
  if constexpr (kTopKGiven) take_ids(args, token, mask, stride, weight);
  else route_token(args, token, mask, stride, weight);
}
