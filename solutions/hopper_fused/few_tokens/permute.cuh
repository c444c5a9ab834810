// permute: from each token's mask to rows sorted by expert, in order of token. Every block computes the same lists and
// then moves its share of the rows together.
#pragma once
#include "fused_layer.cuh"
#include "route.cuh"
#include "ptx.cuh"

// Reads mask, which it overwrites; fills first_row, segment, chunk_of_atom, num_chunks, num_rows and token.
__device__ __forceinline__ void permute(FusedSmem& s, int num_tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr unsigned kFullWarp = 0xffffffffu;
  constexpr int kWarps = kFusedThreads / 32;
  const int groups = (num_tokens + 31) / 32;
  uint32_t* before = reinterpret_cast<uint32_t*>(s.scales);  // [groups][expert]: rows in earlier groups
  static_assert(sizeof(s.scales) >= kFusedMaxTokens * kMaskWords * sizeof(uint32_t), "");
  for (int i = warp; i < groups * kMaskWords; i += kWarps) {
    s.mask[32 * i + lane] = tokens_of_expert(i / kMaskWords * 32 + lane < num_tokens ? s.mask[32 * i + lane] : 0);
  }
  __syncthreads();
  static_assert(kPaddedLocal <= kFusedThreads && sizeof(s.amax) >= kMaskWords * sizeof(int2), "a thread an expert");
  int2* of_word = reinterpret_cast<int2*>(s.amax);  // rows and segments of 32 experts
  const int e = threadIdx.x;
  int rows = 0, padded = 0, chunks = 0, row_end = 0, chunk_end = 0;
  if (e < kPaddedLocal) {
    for (int g = 0; g < groups; g++) {
      before[g * kPaddedLocal + e] = rows;
      rows += __popc(s.mask[g * kPaddedLocal + e]);
    }
    row_end = padded = (rows + kAtomRows - 1) / kAtomRows * kAtomRows;
    chunk_end = chunks = (rows + kChunkRows - 1) / kChunkRows;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int r = __shfl_up_sync(kFullWarp, row_end, d), c = __shfl_up_sync(kFullWarp, chunk_end, d);
      row_end += lane >= d ? r : 0;
      chunk_end += lane >= d ? c : 0;
    }
    if (kMaskWords > 1 && lane == 31) of_word[warp] = make_int2(row_end, chunk_end);
  }
  if constexpr (kMaskWords > 1) __syncthreads();
  if (e < kPaddedLocal) {
    if constexpr (kMaskWords > 1)
      for (int w = 0; w < warp; w++) row_end += of_word[w].x, chunk_end += of_word[w].y;
    s.first_row[e] = row_end - padded;
    for (int r = rows; r < padded; r++) s.token[row_end - padded + r] = kNoToken;
    for (int c = 0; c < chunks; c++) {
      const int done = c * kChunkRows, first = row_end - padded + done, number = chunk_end - chunks + c;
      const int here = min(kChunkRows, rows - done);
      s.chunk[number] = {(uint16_t)e, (uint16_t)here, (uint32_t)first};
      for (int g = 0; g < here; g += kAtomRows) s.chunk_of_atom[(first + g) / kAtomRows] = number;
    }
    if (e == kPaddedLocal - 1) s.num_chunks = chunk_end, s.num_rows = row_end;
  }
  __syncthreads();
  for (int i = warp; i < groups * kMaskWords; i += kWarps) {
    int row = s.first_row[i % kMaskWords * 32 + lane] + before[32 * i + lane];
    for (unsigned hits = s.mask[32 * i + lane]; hits; hits &= hits - 1)
      s.token[row++] = i / kMaskWords * 32 + __ffs(hits) - 1;
  }
  __syncthreads();
}

// Asks for the tokens before it is known which of them have rows here, so that gather_rows finds them in L2.
__device__ __forceinline__ void prefetch_tokens(const FusedArgs& args) {
  const int thread = blockIdx.x * kFusedThreads + threadIdx.x, threads = gridDim.x * kFusedThreads;
  const int lines = args.num_tokens * kKSteps1, scale_lines = (lines * 4 + 127) / 128;
  for (int i = thread; i < lines; i += threads) prefetch_l2(args.x + i * 128);
  if (thread < scale_lines) prefetch_l2(reinterpret_cast<const uint8_t*>(args.x_scale) + thread * 128);
}

// This block's share of the rows and their scales, into the scratch's segments, for those that are not copied directly; a
// warp a row, for the consumer warps.
// Says when the first rows are read: weights asked for earlier would fill the block's way from L2 before them.
__device__ __forceinline__ void gather_rows(const FusedSmem& s, const FusedArgs& args) {
  constexpr int kPieces = kHidden / 16 / 32;  // of 16 bytes, for each lane
  const int lane = threadIdx.x % 32;
  bool signalled = false;
  for (int row = blockIdx.x + gridDim.x * (threadIdx.x / 32); row < s.num_rows; row += gridDim.x * kConsumerThreads / 32) {
    const Chunk chunk = s.chunk[s.chunk_of_atom[row / kAtomRows]];
    const int in_chunk = row - chunk.first_row;
    if (chunk.bypasses_gather(args.num_tokens)) continue;
    const int t = s.token[row];
    uint4 piece[kPieces];
    float scale[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      piece[i] = t == kNoToken ? make_uint4(0, 0, 0, 0)
                               : __ldg(reinterpret_cast<const uint4*>(args.x + t * kHidden) + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (t != kNoToken && 32 * i + lane < kKSteps1) scale[i] = __ldg(args.x_scale + (32 * i + lane) * args.num_tokens + t);
    if (!signalled) named_barrier_arrive(kBarRowsRead, kConsumerThreads + 32), signalled = true;
    const int in_step = in_chunk / kAtomRows * kAtomBytes + swizzle_128b(in_chunk % kAtomRows, lane % 8 * 16);
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      *reinterpret_cast<uint4*>(args.scratch->x + chunk.x_at(4 * i + lane / 8) + in_step) = piece[i];
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (32 * i + lane < kKSteps1) args.scratch->x_scale[chunk.x_scale_at(32 * i + lane) + in_chunk] = scale[i];
  }
  if (!signalled) named_barrier_arrive(kBarRowsRead, kConsumerThreads + 32);
}
