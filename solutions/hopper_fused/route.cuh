// route: one warp a token. Lane l holds experts 8 l .. 8 l + 7, so a group of 32 experts is four lanes.
#pragma once
#include "layer.cuh"

// Order-preserving map of floats to unsigned, so that one warp instruction finds the maximum.
__device__ __forceinline__ unsigned ordered(float f) {
  unsigned u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Sorts, the largest first.
__device__ __forceinline__ void sort_down(unsigned (&v)[8]) {
  constexpr int kPairs[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 2}, {5, 6},
                                 {0, 4}, {1, 5}, {2, 6}, {3, 7}, {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
  for (int i = 0; i < 19; i++) {
    const unsigned a = v[kPairs[i][0]], b = v[kPairs[i][1]];
    v[kPairs[i][0]] = max(a, b);
    v[kPairs[i][1]] = min(a, b);
  }
}

// Writes mask (the local experts of the token) and weight[local expert] for the set bits. All lanes call it.
__device__ __forceinline__ void route_token(const Layer& a, int token, uint32_t* mask, float* weight) {
  const int lane = threadIdx.x % 32;
  constexpr unsigned kAll = 0xffffffffu;
  float s[8], choice[8];
  const float4* logits = reinterpret_cast<const float4*>(a.logits + (size_t)token * kExperts + 8 * lane);
  const uint4 packed = *reinterpret_cast<const uint4*>(a.bias + 8 * lane);
  const float4 l0 = logits[0], l1 = logits[1];
  const float logit[8] = {l0.x, l0.y, l0.z, l0.w, l1.x, l1.y, l1.z, l1.w};
  const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  float best = -INFINITY, second = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float bias = __uint_as_float(i % 2 ? pairs[i / 2] & 0xffff0000u : pairs[i / 2] << 16);
    s[i] = 1.0f / (1.0f + expf(-logit[i]));
    choice[i] = s[i] + bias;
    second = fmaxf(second, fminf(best, choice[i]));
    best = fmaxf(best, choice[i]);
  }
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    const float other_best = __shfl_xor_sync(kAll, best, d), other_second = __shfl_xor_sync(kAll, second, d);
    second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
    best = fmaxf(best, other_best);
  }
  const float score = best + second;
  int ahead = 0;
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const float other = __shfl_sync(kAll, score, 4 * g);
    ahead += other > score || (other == score && g < lane / 4);
  }
  // Each lane's experts in order of score: then the warp takes the best of all lanes' first eight times. Of equal ones the
  // first lane's, and in the lane the first.
  unsigned key[8], in_order[8];
#pragma unroll
  for (int i = 0; i < 8; i++) in_order[i] = key[i] = ahead < 4 ? ordered(choice[i]) : 0;
  sort_down(in_order);
  int taken = 0;  // of this lane
  unsigned last = 0xffffffffu;
#pragma unroll 1  // each round's code comes cold from memory otherwise
  for (int k = 0; k < kTopK; k++) {
    const unsigned top = __reduce_max_sync(kAll, in_order[0]);
    const bool mine = lane == __ffs(__ballot_sync(kAll, in_order[0] == top)) - 1;
    taken += mine;
    last = mine ? top : last;
#pragma unroll
    for (int i = 0; i < 7; i++) in_order[i] = mine ? in_order[i + 1] : in_order[i];
    in_order[7] = mine ? 0 : in_order[7];
  }
  int equal = taken;  // to `last`, of those taken
#pragma unroll
  for (int i = 0; i < 8; i++) equal -= key[i] > last;
  unsigned chosen = 0;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const bool is_equal = key[i] == last;
    const bool is_chosen = key[i] > last || (is_equal && equal > 0);
    equal -= is_equal;
    chosen |= is_chosen ? 1u << i : 0;
    sum += is_chosen ? s[i] : 0.0f;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  const float factor = a.routed_scaling_factor / (sum + 1e-20f);
  unsigned local_bits = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int local = 8 * lane + i - a.local_expert_offset;
    if ((chosen >> i & 1) && local >= 0 && local < kLocal) {
      local_bits |= 1u << local;
      weight[local] = s[i] * factor;
    }
  }
  local_bits = __reduce_or_sync(kAll, local_bits);
  if (lane == 0) *mask = local_bits;
}

// For one warp. Lane t gives the mask of one of 32 tokens; lane e gets which of them have a row of expert e: 32 x 32 bits
// transposed.
__device__ __forceinline__ unsigned tokens_of_expert(unsigned mask) {
  unsigned column = 0;
#pragma unroll
  for (int e = 0; e < kLocal; e++) {
    const unsigned hits = __ballot_sync(0xffffffffu, mask >> e & 1);
    if (threadIdx.x % 32 == e) column = hits;
  }
  return column;
}
