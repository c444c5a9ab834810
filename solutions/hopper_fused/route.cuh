// route: one warp a token. Lane l holds experts 8 l .. 8 l + 7, so a group of 32 experts is four lanes.
#pragma once
#include "layer.cuh"

// Order-preserving map of floats to unsigned, so that one warp instruction finds the maximum.
__device__ __forceinline__ unsigned ordered(float f) {
  unsigned u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
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
  unsigned key[8], chosen = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) key[i] = ahead < 4 ? ordered(choice[i]) : 0;
  float sum = 0.0f;
#pragma unroll 1  // each round's code comes cold from memory otherwise
  for (int k = 0; k < kTopK; k++) {
    unsigned mine = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) mine = max(mine, key[i]);
    const unsigned top = __reduce_max_sync(kAll, mine);
    const unsigned holders = __ballot_sync(kAll, mine == top);
    if (lane == __ffs(holders) - 1) {
      bool found = false;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (!found && key[i] == top) {
          found = true;
          key[i] = 0;
          chosen |= 1u << i;
          sum += s[i];
        }
      }
    }
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
