// route: one warp chooses a token's experts. Each lane holds kLaneExperts neighbouring experts, the last lanes fewer if
// there are not as many; a routing group is a few neighbouring lanes. Of equal choices the lower expert wins, and of
// equal groups the lower group. A token always gets kTopK experts: NaN without a sign bit is chosen first, and the
// token's weights are then NaN; a group in which a choice is NaN may be kept or not.
#pragma once
#include "common/cuda/layer/layer.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/pipeline/threads.cuh"

constexpr int kLaneExperts = (kNumExperts + kWarp - 1) / kWarp;

// Whether a lane has an i-th expert.
__device__ __forceinline__ bool lane_has_expert(int i) {
  return kNumExperts % kWarp == 0 || kLaneExperts * ((int)threadIdx.x % kWarp) + i < kNumExperts;
}

// Maps floats to unsigned integers of the same order, so that one __reduce_max_sync finds a warp's maximum.
__device__ __forceinline__ unsigned ordered(float f) {
  unsigned u = __float_as_uint(f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Sorts in descending order: a sorting network of 19 exchanges for eight values.
__device__ __forceinline__ void sort_down(unsigned (&v)[8]) {
  constexpr int kPairs[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {1, 2}, {5, 6},
                                 {0, 4}, {1, 5}, {2, 6}, {3, 7}, {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
  for (int i = 0; i < 19; i++) {
    const unsigned left = v[kPairs[i][0]], right = v[kPairs[i][1]];
    v[kPairs[i][0]] = max(left, right);
    v[kPairs[i][1]] = min(left, right);
  }
}

// Other counts: odd-even transposition sort.
template <int N>
__device__ __forceinline__ void sort_down(unsigned (&v)[N]) {
#pragma unroll
  for (int round = 0; round < N; round++) {
#pragma unroll
    for (int i = round % 2; i + 1 < N; i += 2) {
      const unsigned left = v[i], right = v[i + 1];
      v[i] = max(left, right);
      v[i + 1] = min(left, right);
    }
  }
}

__device__ __forceinline__ float bf16_of_pair(unsigned pair, int high) {
  return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

// Reads this lane's experts: `score`, from which the routing weights come, and `choice`, by which experts are chosen.
// With DeepSeek's routing they are the sigmoid of the logit, and that plus the bias. With renorm routing both are the
// logit.
template <int N>
__device__ __forceinline__ void read_scores(const Layer& args, int token, float (&score)[N], float (&choice)[N]) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (N % 4 != 0 || kNumExperts % kWarp != 0) {  // vectors would not be aligned
    float logit[N], bias[N] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
      const size_t expert = N * lane + i, at = (size_t)token * kNumExperts + expert;
      logit[i] = 0.0f;
      if (!lane_has_expert(i)) continue;
      if constexpr (kRenorm) logit[i] = bf16_of_pair(static_cast<const uint16_t*>(args.logits)[at], 0);
      else logit[i] = static_cast<const float*>(args.logits)[at], bias[i] = bf16_of_pair(args.bias[expert], 0);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
      score[i] = kRenorm ? logit[i] : 1.0f / (1.0f + expf(-logit[i]));
      choice[i] = kRenorm ? logit[i] : score[i] + bias[i];
    }
  } else if constexpr (kRenorm) {
    const auto* bf16 = static_cast<const uint16_t*>(args.logits) + (size_t)token * kNumExperts + N * lane;
    const uint2* logits = reinterpret_cast<const uint2*>(bf16);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      const uint2 four = logits[i];
#pragma unroll
      for (int j = 0; j < 4; j++) score[4 * i + j] = choice[4 * i + j] = bf16_of_pair(j < 2 ? four.x : four.y, j % 2);
    }
  } else {
    const auto* fp32 = static_cast<const float*>(args.logits) + (size_t)token * kNumExperts + N * lane;
    const float4* logits = reinterpret_cast<const float4*>(fp32);
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
        score[4 * i + j] = 1.0f / (1.0f + expf(-four[j]));
        choice[4 * i + j] = score[4 * i + j] + bf16_of_pair(j < 2 ? bias[i].x : bias[i].y, j % 2);
      }
    }
  }
}

// Whether this lane's routing group is kept. A group's score is the sum of its two largest choices.
template <int N>
__device__ __forceinline__ bool in_kept_group(const float (&choice)[N]) {
  if constexpr (kRoutingGroups == 1) return true;
  constexpr int kLanes = kWarp / kRoutingGroups;  // of a group
  float best = -INFINITY, second = -INFINITY;
#pragma unroll
  for (int i = 0; i < N; i++) {
    second = fmaxf(second, fminf(best, choice[i]));
    best = fmaxf(best, choice[i]);
  }
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    const float other_best = __shfl_xor_sync(kFullWarp, best, d), other_second = __shfl_xor_sync(kFullWarp, second, d);
    second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
    best = fmaxf(best, other_best);
  }
  const float score = best + second;
  const int group = threadIdx.x % kWarp / kLanes;
  int ahead = 0;
#pragma unroll
  for (int g = 0; g < kRoutingGroups; g++) {
    const float other = __shfl_sync(kFullWarp, score, kLanes * g);
    ahead += other > score || (other == score && g < group);
  }
  return ahead < kKeptGroups;
}

// The bits of the shared experts in a token's w-th word of local experts.
__device__ __forceinline__ constexpr unsigned shared_bits(int w) {
  unsigned bits = 0;
  for (int e = kNumRoutedLocalExperts; e < kNumLocalExperts; e++) bits |= e / 32 == w ? 1u << e % 32 : 0;
  return bits;
}

// For a whole warp: chooses the token's experts, and adds the shared ones if they are this rank's. Writes mask[stride *
// w], whose bits are local experts 32 w to 32 w + 31, and weight[local expert] where the bit is set. Lane l has experts
// N l to N l + N - 1.
__device__ __forceinline__ void route_token(const Layer& args, int token, uint32_t* mask, int stride, float* weight) {
  const int lane = threadIdx.x % kWarp;
  constexpr int N = kLaneExperts;
  float score[N], choice[N];
  read_scores<N>(args, token, score, choice);
  const bool kept = in_kept_group<N>(choice);

  // Each lane sorts its experts by choice. Then, kTopK times, the warp takes the largest of the lanes' first ones:
  // among equal ones the lowest lane's, and within a lane the lowest expert.
  unsigned key[N], in_order[N];
#pragma unroll
  for (int i = 0; i < N; i++) in_order[i] = key[i] = kept && lane_has_expert(i) ? ordered(choice[i]) : 0;
  sort_down(in_order);
  int taken = 0;  // experts of this lane
  unsigned last = 0xffffffffu, largest_key = 0;  // the last key taken from this lane; the warp's largest
#pragma unroll 1  // unrolled, each round's instructions would be fetched cold from memory
  for (int k = 0; k < kTopK; k++) {
    const unsigned top = __reduce_max_sync(kFullWarp, in_order[0]);
    const bool mine = lane == __ffs(__ballot_sync(kFullWarp, in_order[0] == top)) - 1;
    largest_key = max(largest_key, top);
    taken += mine;
    last = mine ? top : last;
#pragma unroll
    for (int i = 0; i < N - 1; i++) in_order[i] = mine ? in_order[i + 1] : in_order[i];
    in_order[N - 1] = mine ? 0 : in_order[N - 1];
  }

  // which of this lane's experts were taken, and the sum of all taken experts' scores
  int equal = taken;  // experts still to take whose key equals `last`
#pragma unroll
  for (int i = 0; i < N; i++) equal -= key[i] > last;
  if constexpr (kRenorm) {
    const float largest = __uint_as_float(largest_key & 0x80000000u ? largest_key & 0x7fffffffu : ~largest_key);
#pragma unroll
    for (int i = 0; i < N; i++) score[i] = expf(score[i] - largest);
  }
  unsigned chosen = 0;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const bool is_equal = key[i] == last;
    const bool is_chosen = key[i] > last || (is_equal && equal > 0);
    equal -= is_equal;
    chosen |= is_chosen ? 1u << i : 0;
    sum += is_chosen ? score[i] : 0.0f;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);

  // weights, of the local ones
  const float factor = kRenorm ? 1.0f / sum : args.routed_scaling_factor / (sum + 1e-20f);
  unsigned chosen_local = 0;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int local = N * lane + i - args.local_expert_offset;
    if ((chosen >> i & 1) && local >= 0 && local < kNumRoutedLocalExperts) {
      chosen_local |= 1u << i;
      weight[local] = score[i] * factor;
    }
  }
  const bool takes_shared =
      kExpertRanks == 1 || token % kExpertRanks == args.local_expert_offset / kNumRoutedLocalExperts;
  if (takes_shared && lane < kNumSharedExperts) weight[kNumRoutedLocalExperts + lane] = 1.0f;

  // mask: this lane's bits fall into one word, or into two neighbouring ones
  const int at = N * lane - args.local_expert_offset, word = at < 0 ? 0 : at / 32;
  uint64_t bits = chosen_local == 0 ? 0 : at < 0 ? chosen_local >> -at : (uint64_t)chosen_local << at % 32;
#pragma unroll
  for (int w = 0; w < kMaskWords; w++) {
    const unsigned mine = (w == word ? (unsigned)bits : 0u) | (w == word + 1 ? (unsigned)(bits >> 32) : 0u);
    const unsigned all = __reduce_or_sync(kFullWarp, mine);
    if (lane == 0) mask[stride * w] = all | (takes_shared ? shared_bits(w) : 0u);
  }
}

// For a whole warp: transposes 32 x 32 bits. Lane t passes the mask of token t of 32; lane e receives the tokens that
// have expert e.
__device__ __forceinline__ unsigned tokens_of_expert(unsigned mask) {
  unsigned column = 0;
#pragma unroll
  for (int e = 0; e < 32; e++) {
    const unsigned hits = __ballot_sync(kFullWarp, mask >> e & 1);
    if (threadIdx.x % kWarp == e) column = hits;
  }
  return column;
}
