// permute: from the tokens' masks of local experts (route(), fused_layer.cu) to rows in order of experts, an expert's
// rows in order of tokens, and to m_blocks. Every CTA makes the same lists.
#pragma once
#include "mma_fused/one_launch/fused_layer.cuh"
#include "common/cuda/tokens/route.cuh"
#include "common/cuda/tokens/sum_experts.cuh"

namespace mma_fused {

// As permute, where an expert's rows are one m_block: a lane for each local expert. One barrier for three.
__device__ __forceinline__ void permute_batch(Smem& s, int num_tokens) {
  static_assert(Config::kMBlockRows <= 32, "the tokens are one batch");
  Routing& routing = s.routing();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, e = threadIdx.x;
  unsigned tokens = 0;
  if (warp < kMaskWords)
    for (int t = 0; t < num_tokens; t++) tokens |= (routing.mask[32 * warp + t] >> lane & 1) << t;
  ExpertSums before, all;
  sum_experts<Config::kMmaN>(__popc(tokens), reinterpret_cast<int*>(routing.word_sums), before, all);
  if (threadIdx.x == Config::kThreads - 1) s.num_m_blocks = all.experts;
  if (warp >= kMaskWords || tokens == 0) return;
  int row = before.atoms * Config::kMmaN;
  s.m_blocks[before.experts] = {(uint16_t)e, (uint16_t)__popc(tokens), (uint32_t)row};
  const bool all_route = num_tokens <= Config::kRouteAllTokens;
#pragma unroll 1
  for (; tokens; tokens &= tokens - 1, row++) {
    const int t = __ffs(tokens) - 1;
    s.token[row] = t;
    if (all_route) s.row_weight[row] = routing.weight[t][e];
  }
}

// Reads routing.mask, which it overwrites, and where every CTA routes all tokens routing.weight. Writes m_blocks,
// num_m_blocks, token and row_weight. For all threads. Ends without a barrier: all but num_m_blocks, which the last
// thread may read, are being written.
__device__ __forceinline__ void permute(Smem& s, int num_tokens) {
  if (kMaskWords <= Config::kWarps && num_tokens <= Config::kMBlockRows) return permute_batch(s, num_tokens);
  Routing& routing = s.routing();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, batches = (num_tokens + 31) / 32;
  for (int i = warp; i < batches * kMaskWords; i += Config::kWarps)
    routing.mask[32 * i + lane] =
        tokens_of_expert(i / kMaskWords * 32 + lane < num_tokens ? routing.mask[32 * i + lane] : 0);
  __syncthreads();

  // A warp scans 32 experts: padded rows and m_blocks of the experts before each.
  for (int w = warp; w < kMaskWords; w += Config::kWarps) {
    const int e = 32 * w + lane;
    int rows = 0;
#pragma unroll 1
    for (int b = 0; b < batches; b++) {
      routing.rows_before[b * kPaddedLocalExperts + e] = rows;
      rows += __popc(routing.mask[b * kPaddedLocalExperts + e]);
    }
    int row_end = (rows + Config::kMmaN - 1) / Config::kMmaN * Config::kMmaN,
        m_block_end = (rows + Config::kMBlockRows - 1) / Config::kMBlockRows;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int r = __shfl_up_sync(kFullWarp, row_end, d), m = __shfl_up_sync(kFullWarp, m_block_end, d);
      row_end += lane >= d ? r : 0;
      m_block_end += lane >= d ? m : 0;
    }
    if (lane == kWarp - 1) routing.word_sums[w] = make_int2(row_end, m_block_end);
    routing.first_row[e] = row_end - (rows + Config::kMmaN - 1) / Config::kMmaN * Config::kMmaN;
  }
  __syncthreads();
  for (int w = warp; w < kMaskWords; w += Config::kWarps) {
    const int e = 32 * w + lane;
    int rows_before = 0, m_blocks_before = 0;  // of the words before
    for (int i = 0; i < w; i++) rows_before += routing.word_sums[i].x, m_blocks_before += routing.word_sums[i].y;
    const int last = (batches - 1) * kPaddedLocalExperts + e, first = rows_before + routing.first_row[e];
    const int rows = routing.rows_before[last] + __popc(routing.mask[last]);
    const int m_blocks = (rows + Config::kMBlockRows - 1) / Config::kMBlockRows;
    int m_block_end = m_blocks;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int m = __shfl_up_sync(kFullWarp, m_block_end, d);
      m_block_end += lane >= d ? m : 0;
    }
    m_block_end += m_blocks_before;
#pragma unroll 1
    for (int m = 0; m < m_blocks; m++)
      s.m_blocks[m_block_end - m_blocks + m] = {(uint16_t)e,
                                                (uint16_t)min(Config::kMBlockRows, rows - m * Config::kMBlockRows),
                                                (uint32_t)(first + m * Config::kMBlockRows)};
    routing.first_row[e] = first;
    if (e == kPaddedLocalExperts - 1) s.num_m_blocks = m_block_end;
  }
  __syncthreads();
  const bool all_route = num_tokens <= Config::kRouteAllTokens;
  for (int i = warp; i < batches * kMaskWords; i += Config::kWarps) {
    const int e = i % kMaskWords * 32 + lane;
    int row = routing.first_row[e] + routing.rows_before[32 * i + lane];
    for (unsigned hits = routing.mask[32 * i + lane]; hits; hits &= hits - 1, row++) {
      const int t = i / kMaskWords * 32 + __ffs(hits) - 1;
      s.token[row] = t;
      if (all_route) s.row_weight[row] = routing.weight[t][e];
    }
  }
}

}  // namespace mma_fused
