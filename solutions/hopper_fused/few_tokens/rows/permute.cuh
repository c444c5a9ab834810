// permute: makes row lists of the masks of each token's local experts, or of the caller's top-k ids: rows in order of
// expert, and an expert's rows in order of token. Every CTA computes the same lists.
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/tokens/route.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/tokens/sum_experts.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/tokens/token_experts.cuh"

namespace hopper_fused {

// With top-k given: writes mask, transposed, straight from the ids. That is so cheap that every CTA does it for all
// tokens, without a grid barrier.
__device__ __forceinline__ void mark_tokens(FusedSmem& s, const FusedArgs& args) {
  for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocalExperts; i += Config::kThreads) s.mask[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < args.num_tokens * kTopK; i += Config::kThreads) {
    const int t = i / kTopK;
    const unsigned expert = local_number(args, args.topk_ids[i]);
    if (expert < kNumLocalExperts) atomicOr(&s.mask[t / 32 * kPaddedLocalExperts + expert], 1u << t % 32);
  }
  __syncthreads();
}

// With top-k given: writes row_weight. rows_before: [batch][expert], its rows in earlier batches; null if there is one.
__device__ __forceinline__ void place_weights(FusedSmem& s, const FusedArgs& args, const uint32_t* rows_before) {
  for (int i = threadIdx.x; i < args.num_tokens * kTopK; i += Config::kThreads) {
    const int t = i / kTopK;
    const Slot slot = read_slot(args, t, i % kTopK);
    if (kMxfp4Weights && args.token_rows && blockIdx.x == 0) args.token_rows[i] = -1;
    if (slot.expert >= kNumLocalExperts || !slot.first) continue;
    const int at = t / 32 * kPaddedLocalExperts + slot.expert;
    const int in_batch = __popc(s.mask[at] & ((1u << t % 32) - 1));
    const int before = rows_before ? rows_before[at] : 0;
    const int row = s.first_row[slot.expert] + before + in_batch;
    s.gemm1_smem().row_weight()[row] = slot.weight;
    if (kMxfp4Weights && args.token_rows && blockIdx.x == 0) args.token_rows[i] = row;
  }
}

// permute for one batch of up to 32 tokens: a lane for each local expert, whose rows are one m_block. It takes two
// barriers where permute_batches takes four, and about 1 us less.
__device__ __forceinline__ void permute_batch(FusedSmem& s, const FusedArgs& args) {
  static_assert(32 <= Config::kMBlockRows, "a batch's rows of an expert are one m_block");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, e = threadIdx.x;
  unsigned tokens = 0;
  if (warp < kMaskWords) {
    if constexpr (kTopKGiven) tokens = s.mask[e];
    else
      for (int t = 0; t < args.num_tokens; t++) tokens |= (s.mask[32 * warp + t] >> lane & 1) << t;
  }
  ExpertSums before, all;
  sum_experts<kAtomRows>(__popc(tokens), reinterpret_cast<int*>(s.amax), before, all);
  if (threadIdx.x == 0) s.num_m_blocks = all.experts, s.num_rows = all.atoms * kAtomRows;
  if (warp < kMaskWords) {
    int row = before.atoms * kAtomRows;
    s.first_row[e] = row;
    if (tokens) s.m_block[before.experts] = {(uint16_t)e, (uint16_t)__popc(tokens), (uint32_t)row};
    while (tokens) {
      s.m_block_of_atom[row / kAtomRows] = before.experts;
      for (int r = 0; r < kAtomRows; r++, tokens &= tokens - 1) s.token[row++] = tokens ? __ffs(tokens) - 1 : kNoToken;
    }
  }
  if constexpr (kTopKGiven) {
    __syncthreads();
    place_weights(s, args, nullptr);
  }
}

// permute for any number of tokens. First the mask is transposed. Then a thread for each local expert, up to kThreads
// at a time, counts the expert's rows, and scans over the threads find where they begin. Last, the rows' tokens are
// written.
__device__ __forceinline__ void permute_batches(FusedSmem& s, const FusedArgs& args) {
  const int num_tokens = args.num_tokens;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int batches = (num_tokens + 31) / 32;
  // [batch][expert]: its rows in earlier batches
  uint32_t* rows_before = s.rows_before;
  int2* word_sums = reinterpret_cast<int2*>(s.amax);  // rows and m_blocks of 32 experts
  static_assert(sizeof(s.amax) >= kMaskWords * sizeof(int2), "word_sums fits into amax");
  constexpr int kTurns = (kPaddedLocalExperts + Config::kThreads - 1) / Config::kThreads;
  if constexpr (!kTopKGiven) {
    for (int i = warp; i < batches * kMaskWords; i += Config::kWarps)
      s.mask[32 * i + lane] = tokens_of_expert(i / kMaskWords * 32 + lane < num_tokens ? s.mask[32 * i + lane] : 0);
    __syncthreads();
  }

  // of expert e; row_end and m_block_end are sums over the experts up to e
  int rows = 0, padded = 0, m_blocks = 0, row_end = 0, m_block_end = 0, e = threadIdx.x;
  do {
    const int word = kTurns > 1 ? e / kWarp : warp;
    if (e < kPaddedLocalExperts) {
      for (int b = 0; b < batches; b++) {
        rows_before[b * kPaddedLocalExperts + e] = rows;
        rows += __popc(s.mask[b * kPaddedLocalExperts + e]);
      }
      row_end = padded = (rows + kAtomRows - 1) / kAtomRows * kAtomRows;
      m_block_end = m_blocks = (rows + Config::kMBlockRows - 1) / Config::kMBlockRows;
#pragma unroll
      for (int d = 1; d < kWarp; d *= 2) {
        const int r = __shfl_up_sync(kFullWarp, row_end, d), m = __shfl_up_sync(kFullWarp, m_block_end, d);
        row_end += lane >= d ? r : 0;
        m_block_end += lane >= d ? m : 0;
      }
      if (kMaskWords > 1 && lane == kWarp - 1) word_sums[word] = make_int2(row_end, m_block_end);
    }
    if constexpr (kMaskWords > 1) __syncthreads();
    if (e < kPaddedLocalExperts) {
      if constexpr (kMaskWords > 1)
        for (int w = 0; w < word; w++) row_end += word_sums[w].x, m_block_end += word_sums[w].y;
      s.first_row[e] = row_end - padded;
      for (int r = rows; r < padded; r++) s.token[row_end - padded + r] = kNoToken;
      for (int m = 0; m < m_blocks; m++) {
        const int done = m * Config::kMBlockRows, first = row_end - padded + done, index = m_block_end - m_blocks + m;
        const int block_rows = min(Config::kMBlockRows, rows - done);
        s.m_block[index] = {(uint16_t)e, (uint16_t)block_rows, (uint32_t)first};
        for (int r = 0; r < block_rows; r += kAtomRows) s.m_block_of_atom[(first + r) / kAtomRows] = index;
      }
      if (e == kPaddedLocalExperts - 1) s.num_m_blocks = m_block_end, s.num_rows = row_end;
    }
    if constexpr (kTurns > 1) rows = padded = m_blocks = row_end = m_block_end = 0;
  } while (kTurns > 1 && (e += Config::kThreads) < kTurns * Config::kThreads);
  __syncthreads();

  for (int i = warp; i < batches * kMaskWords; i += Config::kWarps) {  // i: a batch and 32 experts, one a lane
    int row = s.first_row[i % kMaskWords * 32 + lane] + rows_before[32 * i + lane];
    for (unsigned hits = s.mask[32 * i + lane]; hits; hits &= hits - 1)
      s.token[row++] = i / kMaskWords * 32 + __ffs(hits) - 1;
  }
  if constexpr (kTopKGiven) place_weights(s, args, rows_before);
}

// For all threads. Reads s.mask. Writes s.first_row, m_block, m_block_of_atom, num_m_blocks, num_rows and token; with
// top-k given also row_weight.
__device__ __forceinline__ void permute(FusedSmem& s, const FusedArgs& args) {
  if (kMaskWords <= Config::kWarps && args.num_tokens <= 32) permute_batch(s, args);
  else permute_batches(s, args);
  fence_proxy_async_shared();  // bulk copies will overwrite rows_before
  __syncthreads();
}

}  // namespace hopper_fused
