// permute: from the tokens' masks, or the caller's ids, to rows in expert order, an expert's rows in order of token.
// Every CTA computes the same lists; then each gathers its share of the rows of x.
#pragma once
#include "arguments.cuh"
#include "barrier.cuh"
#include "fused_layer.cuh"
#include "l2.cuh"
#include "route.cuh"
#include "token_experts.cuh"
#include "wgmma.cuh"

// Behind a router: writes mask, transposed, straight from the ids. That is so cheap that every CTA does it for all
// tokens, without a grid barrier.
__device__ __forceinline__ void mark_tokens(FusedSmem& s, const FusedArgs& args) {
  for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocalExperts; i += kFusedThreads) s.mask[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < args.num_tokens * kTopK; i += kFusedThreads) {
    const int t = i / kTopK;
    const unsigned expert = local_number(args, __ldg(args.topk_ids + i));
    if (expert < kNumLocalExperts) atomicOr(&s.mask[t / 32 * kPaddedLocalExperts + expert], 1u << t % 32);
  }
  __syncthreads();
}

// Reads mask, which it overwrites. Writes first_row, chunk, chunk_of_atom, num_chunks, num_rows and token; behind a
// router row_weight, too.
__device__ __forceinline__ void permute(FusedSmem& s, const FusedArgs& args) {
  const int num_tokens = args.num_tokens;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kWarps = kFusedThreads / kWarp;
  constexpr unsigned kAll = kFullWarp;
  const int batches = (num_tokens + 31) / 32;
  uint32_t* before = reinterpret_cast<uint32_t*>(s.scales);  // [batch][expert]: rows of the expert in earlier batches
  static_assert(sizeof(s.scales) >= kFusedMaxTokens * kMaskWords * sizeof(uint32_t), "`before` fits into the scales");
  if constexpr (!kTopKGiven) {
    for (int i = warp; i < batches * kMaskWords; i += kWarps)
      s.mask[32 * i + lane] = tokens_of_expert(i / kMaskWords * 32 + lane < num_tokens ? s.mask[32 * i + lane] : 0);
    __syncthreads();
  }
  static_assert(kPaddedLocalExperts <= kFusedThreads, "one thread for each local expert");
  static_assert(sizeof(s.amax) >= kMaskWords * sizeof(int2), "`word_sums` fits into amax");
  int2* word_sums = reinterpret_cast<int2*>(s.amax);  // rows and chunks of 32 experts
  const int e = threadIdx.x;
  int rows = 0, padded = 0, chunks = 0, row_end = 0, chunk_end = 0;
  if (e < kPaddedLocalExperts) {
    for (int b = 0; b < batches; b++) {
      before[b * kPaddedLocalExperts + e] = rows;
      rows += __popc(s.mask[b * kPaddedLocalExperts + e]);
    }
    row_end = padded = (rows + kAtomRows - 1) / kAtomRows * kAtomRows;
    chunk_end = chunks = (rows + kChunkRows - 1) / kChunkRows;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int r = __shfl_up_sync(kAll, row_end, d), c = __shfl_up_sync(kAll, chunk_end, d);
      row_end += lane >= d ? r : 0;
      chunk_end += lane >= d ? c : 0;
    }
    if (kMaskWords > 1 && lane == kWarp - 1) word_sums[warp] = make_int2(row_end, chunk_end);
  }
  if constexpr (kMaskWords > 1) __syncthreads();
  if (e < kPaddedLocalExperts) {
    if constexpr (kMaskWords > 1)
      for (int w = 0; w < warp; w++) row_end += word_sums[w].x, chunk_end += word_sums[w].y;
    s.first_row[e] = row_end - padded;
    for (int r = rows; r < padded; r++) s.token[row_end - padded + r] = kNoToken;
    for (int c = 0; c < chunks; c++) {
      const int done = c * kChunkRows, first = row_end - padded + done, number = chunk_end - chunks + c;
      const int in_chunk = min(kChunkRows, rows - done);
      s.chunk[number] = {(uint16_t)e, (uint16_t)in_chunk, (uint32_t)first};
      for (int r = 0; r < in_chunk; r += kAtomRows) s.chunk_of_atom[(first + r) / kAtomRows] = number;
    }
    if (e == kPaddedLocalExperts - 1) s.num_chunks = chunk_end, s.num_rows = row_end;
  }
  __syncthreads();
  for (int i = warp; i < batches * kMaskWords; i += kWarps) {
    int row = s.first_row[i % kMaskWords * 32 + lane] + before[32 * i + lane];
    for (unsigned hits = s.mask[32 * i + lane]; hits; hits &= hits - 1)
      s.token[row++] = i / kMaskWords * 32 + __ffs(hits) - 1;
  }
  if constexpr (kTopKGiven) {
    for (int i = threadIdx.x; i < num_tokens * kTopK; i += kFusedThreads) {
      const int t = i / kTopK;
      const Slot slot = read_slot(args, t, i % kTopK);
      if (slot.expert >= kNumLocalExperts || !slot.first) continue;
      const int at = t / 32 * kPaddedLocalExperts + slot.expert;
      const int in_batch = __popc(s.mask[at] & ((1u << t % 32) - 1));
      s.gemm1_only().row_weight[s.first_row[slot.expert] + before[at] + in_batch] = slot.weight;
    }
  }
  __syncthreads();
}

// Prefetches all tokens to L2 before it is known which have rows here, so that gather_rows finds them there.
__device__ __forceinline__ void prefetch_tokens(const FusedArgs& args) {
  constexpr int kLine = 128;
  const int thread = blockIdx.x * kFusedThreads + threadIdx.x, threads = gridDim.x * kFusedThreads;
  const int lines = args.num_tokens * kNumKBlocks1, scale_lines = (lines * 4 + kLine - 1) / kLine;
  for (int i = thread; i < lines; i += threads) prefetch_l2(args.x + i * kLine);
  if (thread < scale_lines) prefetch_l2(reinterpret_cast<const uint8_t*>(args.x_scale) + thread * kLine);
}

// For the consumer warps, one warp a row: copies this CTA's share of the rows and their scales to the scratch, in the
// layout of chunks. Rows of chunks that bypass the gather are left out.
// Arrives at kBarRowsRead when this warp's first row is read: weights requested earlier would delay the rows.
__device__ __forceinline__ void gather_rows(const FusedSmem& s, const FusedArgs& args) {
  constexpr int kPieces = kHidden / 16 / kWarp;  // 16-byte pieces of a row for each lane
  constexpr int kPiecesPerStep = kBlockK / 16;
  constexpr int kScalesPerLane = 2;
  static_assert(kHidden % (16 * kWarp) == 0 && kNumKBlocks1 <= kScalesPerLane * kWarp, "a row and its scales fit a warp");
  const int lane = threadIdx.x % kWarp;
  bool arrived = false;
  for (int row = blockIdx.x + gridDim.x * (threadIdx.x / kWarp); row < s.num_rows;
       row += gridDim.x * kConsumerThreads / kWarp) {
    const Chunk chunk = s.chunk[s.chunk_of_atom[row / kAtomRows]];
    const int in_chunk = row - chunk.first_row;
    if (chunk.bypasses_gather(args.num_tokens)) continue;
    const int t = s.token[row];
    uint4 piece[kPieces];
    float scale[kScalesPerLane] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      piece[i] = t == kNoToken ? make_uint4(0, 0, 0, 0)
                               : __ldg(reinterpret_cast<const uint4*>(args.x + t * kHidden) + kWarp * i + lane);
#pragma unroll
    for (int i = 0; i < kScalesPerLane; i++)
      if (t != kNoToken && kWarp * i + lane < kNumKBlocks1)
        scale[i] = __ldg(args.x_scale + x_scale_index(kWarp * i + lane, t, args.num_tokens));
    if (!arrived) named_barrier_arrive(kBarRowsRead, kConsumerThreads + kWarp), arrived = true;
    const int in_step =
        in_chunk / kAtomRows * kAtomBytes + swizzle_128b(in_chunk % kAtomRows, lane % kPiecesPerStep * 16);
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      *reinterpret_cast<uint4*>(args.scratch->x + chunk.x_at(4 * i + lane / kPiecesPerStep) + in_step) = piece[i];
#pragma unroll
    for (int i = 0; i < kScalesPerLane; i++)
      if (kWarp * i + lane < kNumKBlocks1) args.scratch->x_scale[chunk.x_scale_at(kWarp * i + lane) + in_chunk] = scale[i];
  }
  if (!arrived) named_barrier_arrive(kBarRowsRead, kConsumerThreads + kWarp);
}
