// permute: from each token's mask to rows sorted by expert, in order of token. Every block computes the same lists and
// then moves its share of the rows together.
#pragma once
#include "layer.cuh"
#include "route.cuh"
#include "sm90.cuh"

// Reads mask, which it overwrites; fills first_row, segment, num_segments, num_rows and token.
__device__ __forceinline__ void permute(Smem& s, int num_tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kWarps = kThreads / 32;
  const int groups = (num_tokens + 31) / 32;
  uint32_t* before = reinterpret_cast<uint32_t*>(s.scales);  // [groups][expert]: rows in earlier groups
  static_assert(sizeof(s.scales) >= kMaxTokens * sizeof(uint32_t), "");
  for (int g = warp; g < groups; g += kWarps) {
    s.mask[32 * g + lane] = tokens_of_expert(32 * g + lane < num_tokens ? s.mask[32 * g + lane] : 0);
  }
  __syncthreads();
  if (warp == 0) {
    int rows = 0;
    for (int g = 0; g < groups; g++) {
      before[32 * g + lane] = rows;
      rows += __popc(s.mask[32 * g + lane]);
    }
    const int padded = (rows + kGroup - 1) / kGroup * kGroup, chunks = (rows + kChunk - 1) / kChunk;
    int row_end = padded, chunk_end = chunks;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int r = __shfl_up_sync(kAll, row_end, d), c = __shfl_up_sync(kAll, chunk_end, d);
      row_end += lane >= d ? r : 0;
      chunk_end += lane >= d ? c : 0;
    }
    s.first_row[lane] = row_end - padded;
    for (int r = rows; r < padded; r++) s.token[row_end - padded + r] = kNoToken;
    for (int c = 0; c < chunks; c++) {
      const int done = c * kChunk;
      s.segment[chunk_end - chunks + c] = {
          (uint16_t)lane, (uint16_t)min(kChunk, rows - done), (uint32_t)(row_end - padded + done)};
    }
    if (lane == 31) s.num_segments = chunk_end, s.num_rows = row_end;
  }
  __syncthreads();
  for (int g = warp; g < groups; g += kWarps) {
    int row = s.first_row[lane] + before[32 * g + lane];
    for (unsigned hits = s.mask[32 * g + lane]; hits; hits &= hits - 1) s.token[row++] = 32 * g + __ffs(hits) - 1;
  }
  __syncthreads();
}

// Asks for the tokens before it is known which of them have rows here, so that gather_rows finds them in L2.
__device__ __forceinline__ void prefetch_tokens(const Args& a) {
  const int thread = blockIdx.x * kThreads + threadIdx.x, threads = gridDim.x * kThreads;
  const int lines = a.num_tokens * kK1, scale_lines = (lines * 4 + 127) / 128;
  for (int i = thread; i < lines; i += threads) prefetch_l2(a.x + i * 128);
  if (thread < scale_lines) prefetch_l2(reinterpret_cast<const uint8_t*>(a.x_scale) + thread * 128);
}

// This block's share of the rows and their scales, into the scratch's segments, for those that are not copied directly; a
// warp a row, for the consumer warps.
// Says when the first rows are read: weights asked for earlier would fill the block's way from L2 before them.
__device__ __forceinline__ void gather_rows(const Smem& s, const Args& a) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kPieces = kHidden / 16 / 32;  // of 16 bytes, for each lane
  const int lane = threadIdx.x % 32, first_of_mine = s.first_row[lane];
  bool told = false;
  for (int row = blockIdx.x + gridDim.x * (threadIdx.x / 32); row < s.num_rows; row += gridDim.x * kConsumers / 32) {
    const int expert = 31 - __clz(__ballot_sync(kAll, first_of_mine <= row));
    const int first = s.first_row[expert], end = expert == kLocal - 1 ? s.num_rows : s.first_row[expert + 1];
    const int chunk = first + (row - first) / kChunk * kChunk, in_chunk = row - chunk;
    int rows = min(kChunk, end - chunk);
    if (rows == kGroup)  // the only size that may be direct: without the rows that fill the group up
      rows = __popc(__ballot_sync(kAll, lane < kGroup && s.token[chunk + lane % kGroup] != kNoToken));
    const Segment seg = {(uint16_t)expert, (uint16_t)rows, (uint32_t)chunk};
    if (seg.direct(a.num_tokens)) continue;
    const int t = s.token[row];
    uint4 piece[kPieces];
    float scale[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      piece[i] = t == kNoToken ? make_uint4(0, 0, 0, 0)
                               : __ldg(reinterpret_cast<const uint4*>(a.x + t * kHidden) + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (t != kNoToken && 32 * i + lane < kK1) scale[i] = __ldg(a.x_scale + (32 * i + lane) * a.num_tokens + t);
    if (!told) bar_arrive(kBarRowsRead, kConsumers + 32), told = true;
    const int in_step = in_chunk / kGroup * kTile8 + swizzled(in_chunk % kGroup, lane % 8 * 16);
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      *reinterpret_cast<uint4*>(a.scratch->x + seg.x_at(4 * i + lane / 8) + in_step) = piece[i];
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (32 * i + lane < kK1) a.scratch->x_scale[seg.x_scale_at(32 * i + lane) + in_chunk] = scale[i];
  }
  if (!told) bar_arrive(kBarRowsRead, kConsumers + 32);
}
