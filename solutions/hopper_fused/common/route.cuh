// route: one warp a token. Each lane holds as many neighbouring experts, a group of experts is a few lanes.
#pragma once
#include "fused_layer.cuh"

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

// The same for other counts: neighbours in turn.
template <int N>
__device__ __forceinline__ void sort_down(unsigned (&v)[N]) {
#pragma unroll
  for (int round = 0; round < N; round++) {
#pragma unroll
    for (int i = round % 2; i + 1 < N; i += 2) {
      const unsigned a = v[i], b = v[i + 1];
      v[i] = max(a, b);
      v[i + 1] = min(a, b);
    }
  }
}

__device__ __forceinline__ float bf16_in(unsigned pair, int high) {
  return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

// The scores of a lane's experts in `s`, from which the weights come, and what the experts are chosen by in `choice`.
template <int N>
__device__ __forceinline__ void read_scores(const Layer& args, int token, float (&s)[N], float (&choice)[N]) {
  const int lane = threadIdx.x % 32;
  static_assert(N % 4 == 0, "");
  if constexpr (kRenorm) {
    const uint2* logits =
        reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(args.logits) + (size_t)token * kExperts + N * lane);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      const uint2 four = logits[i];
#pragma unroll
      for (int j = 0; j < 4; j++) s[4 * i + j] = choice[4 * i + j] = bf16_in(j < 2 ? four.x : four.y, j % 2);
    }
  } else {
    const float4* logits =
        reinterpret_cast<const float4*>(static_cast<const float*>(args.logits) + (size_t)token * kExperts + N * lane);
    const uint2* biases = reinterpret_cast<const uint2*>(args.bias + N * lane);
    float4 logit[N / 4];
    uint2 bias[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; i++) bias[i] = biases[i], logit[i] = logits[i];
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      const float four[4] = {logit[i].x, logit[i].y, logit[i].z, logit[i].w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        s[4 * i + j] = 1.0f / (1.0f + expf(-four[j]));
        choice[4 * i + j] = s[4 * i + j] + bf16_in(j < 2 ? bias[i].x : bias[i].y, j % 2);
      }
    }
  }
}

// Whether this lane's group of experts is one of those kept: by the sum of its two largest.
template <int N>
__device__ __forceinline__ bool in_kept_group(const float (&choice)[N]) {
  if constexpr (kRoutingGroups == 1) return true;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kLanes = 32 / kRoutingGroups;  // of a group
  float best = -INFINITY, second = -INFINITY;
#pragma unroll
  for (int i = 0; i < N; i++) {
    second = fmaxf(second, fminf(best, choice[i]));
    best = fmaxf(best, choice[i]);
  }
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    const float other_best = __shfl_xor_sync(kAll, best, d), other_second = __shfl_xor_sync(kAll, second, d);
    second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
    best = fmaxf(best, other_best);
  }
  const float score = best + second;
  const int group = threadIdx.x % 32 / kLanes;
  int ahead = 0;
#pragma unroll
  for (int g = 0; g < kRoutingGroups; g++) {
    const float other = __shfl_sync(kAll, score, kLanes * g);
    ahead += other > score || (other == score && g < group);
  }
  return ahead < kKeptGroups;
}

// Writes mask[stride * w], the token's local experts 32 w to 32 w + 31, and weight[local expert] for the set bits. All
// lanes call it. Lane l has experts N l to N l + N - 1.
__device__ __forceinline__ void route_token(const Layer& args, int token, uint32_t* mask, int stride, float* weight) {
  const int lane = threadIdx.x % 32;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int N = kExperts / 32;
  float s[N], choice[N];
  read_scores<N>(args, token, s, choice);
  const bool kept = in_kept_group<N>(choice);
  // Each lane's experts in order of score: then the warp takes the best of all lanes' first ones, time after time. Of equal
  // ones the first lane's, and in the lane the first.
  unsigned key[N], in_order[N];
#pragma unroll
  for (int i = 0; i < N; i++) in_order[i] = key[i] = kept ? ordered(choice[i]) : 0;
  sort_down(in_order);
  int taken = 0;  // of this lane
  unsigned last = 0xffffffffu, most = 0;
#pragma unroll 1  // each round's code comes cold from memory otherwise
  for (int k = 0; k < kTopK; k++) {
    const unsigned top = __reduce_max_sync(kAll, in_order[0]);
    const bool mine = lane == __ffs(__ballot_sync(kAll, in_order[0] == top)) - 1;
    most = max(most, top);
    taken += mine;
    last = mine ? top : last;
#pragma unroll
    for (int i = 0; i < N - 1; i++) in_order[i] = mine ? in_order[i + 1] : in_order[i];
    in_order[N - 1] = mine ? 0 : in_order[N - 1];
  }
  int equal = taken;  // to `last`, of those taken
#pragma unroll
  for (int i = 0; i < N; i++) equal -= key[i] > last;
  if constexpr (kRenorm) {
    const float largest = __uint_as_float(most & 0x80000000u ? most & 0x7fffffffu : ~most);
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = expf(s[i] - largest);
  }
  unsigned chosen = 0;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const bool is_equal = key[i] == last;
    const bool is_chosen = key[i] > last || (is_equal && equal > 0);
    equal -= is_equal;
    chosen |= is_chosen ? 1u << i : 0;
    sum += is_chosen ? s[i] : 0.0f;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  const float factor = kRenorm ? 1.0f / sum : args.routed_scaling_factor / (sum + 1e-20f);
  unsigned here = 0;  // of those chosen
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int local = N * lane + i - args.local_expert_offset;
    if ((chosen >> i & 1) && local >= 0 && local < kLocal) {
      here |= 1u << i;
      weight[local] = s[i] * factor;
    }
  }
  // a lane's bits fall into one word or two neighbours
  const int at = N * lane - args.local_expert_offset, word = at < 0 ? 0 : at / 32;
  uint64_t bits = here == 0 ? 0 : at < 0 ? here >> -at : (uint64_t)here << at % 32;
#pragma unroll
  for (int w = 0; w < kMaskWords; w++) {
    const unsigned mine = (w == word ? (unsigned)bits : 0u) | (w == word + 1 ? (unsigned)(bits >> 32) : 0u);
    const unsigned all = __reduce_or_sync(kAll, mine);
    if (lane == 0) mask[stride * w] = all;
  }
}

// For one warp. Lane t gives the mask of one of 32 tokens; lane e gets which of them have a row of expert e of the
// word: 32 x 32 bits transposed.
__device__ __forceinline__ unsigned tokens_of_expert(unsigned mask) {
  unsigned column = 0;
#pragma unroll
  for (int e = 0; e < 32; e++) {
    const unsigned hits = __ballot_sync(0xffffffffu, mask >> e & 1);
    if (threadIdx.x % 32 == e) column = hits;
  }
  return column;
}
