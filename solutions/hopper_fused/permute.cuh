// permute: from each token's mask to rows sorted by expert, in order of token. Every block computes the same.
#pragma once
#include "layer.cuh"

// mask [T], token [rows]: in shared memory. Fills count, first_row, segment, num_segments and token.
__device__ __forceinline__ void permute(Smem& s, const uint32_t* mask, uint16_t* token, int num_tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr unsigned kAll = 0xffffffffu;
  for (int e = warp; e < kLocal; e += kThreads / 32) {
    int rows = 0;
    for (int t = 0; t < num_tokens; t += 32) {
      const unsigned bits = t + lane < num_tokens ? mask[t + lane] : 0;
      rows += __popc(__ballot_sync(kAll, bits >> e & 1));
    }
    if (lane == 0) s.count[e] = rows;
  }
  __syncthreads();
  if (warp == 0) {
    const int rows = s.count[lane], chunks = (rows + kChunk - 1) / kChunk;
    int row_end = rows, chunk_end = chunks;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int r = __shfl_up_sync(kAll, row_end, d), c = __shfl_up_sync(kAll, chunk_end, d);
      row_end += lane >= d ? r : 0;
      chunk_end += lane >= d ? c : 0;
    }
    s.first_row[lane] = row_end - rows;
    for (int c = 0; c < chunks; c++) {
      const int done = c * kChunk;
      s.segment[chunk_end - chunks + c] = {
          (uint16_t)lane, (uint16_t)min(kChunk, rows - done), (uint32_t)(row_end - rows + done)};
    }
    if (lane == 31) s.num_segments = chunk_end;
  }
  __syncthreads();
  for (int e = warp; e < kLocal; e += kThreads / 32) {
    int row = s.first_row[e];
    for (int t = 0; t < num_tokens; t += 32) {
      const unsigned bits = t + lane < num_tokens ? mask[t + lane] : 0;
      const unsigned hits = __ballot_sync(kAll, bits >> e & 1);
      if (bits >> e & 1) token[row + __popc(hits & ((1u << lane) - 1))] = t + lane;
      row += __popc(hits);
    }
  }
  __syncthreads();
}
