// permute: from each token's experts to rows sorted by expert: moves x and its scales there, and tells both products
// and combine where everything is. Nothing of this is known to the host.
#pragma once
#include "layer.cuh"
#include "route.cuh"

// A block routes a chunk of tokens. Above kFewTokens.
__global__ void __launch_bounds__(kChunk * 32) route_kernel(const __grid_constant__ Args a) {
  __shared__ uint32_t mask[kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x * kChunk + warp;
  let_next_start();
  if (token < a.num_tokens)
    route_token(a, token, &mask[warp], a.scratch.weight + (size_t)token * kLocal);
  else if (lane == 0)
    mask[warp] = 0;
  __syncthreads();
  if (warp == 0) {
    const uint32_t column = tokens_of_expert(mask[lane]);
    a.scratch.column[blockIdx.x * kLocal + lane] = column;
  }
}

// Lane e of one warp describes group e of both products: `rows` rows from `start` on.
__device__ __forceinline__ void describe_group(
    GroupTable& table, bool weights_first, int rows, int n, int k, const uint8_t* activations, const uint8_t* weights,
    uint16_t* result, const float* row_scale, const float* block_scale, int start) {
  const int e = threadIdx.x % 32;
  table.problem[e][0] = weights_first ? n : rows;
  table.problem[e][1] = weights_first ? rows : n;
  table.problem[e][2] = k;
  table.activations[e] = activations + (size_t)start * k;
  table.weights[e] = weights + (size_t)e * n * k;
  table.result[e] = result + (size_t)start * n;
  table.row_scale[e] = row_scale + (size_t)start * (k / kBlock);
  table.block_scale[e] = block_scale + (size_t)e * (n / kBlock) * (k / kBlock);
  table.activations_stride[e] = k;
  table.weights_stride[e] = k;
  table.result_stride[e] = n;
}

// Block (chunk, slice) moves its slice of the columns of the chunk's tokens; every block counts all rows by itself.
template <bool kFew>
__global__ void __launch_bounds__(kChunk * 32, kFew ? 1 : 2) permute_kernel(const __grid_constant__ Args a) {
  constexpr uint32_t kAll = 0xffffffffu;
  constexpr int kPieces = kHidden / 16 / 32;  // of a row: 16 bytes for each lane
  constexpr int kAtOnce = 4;
  __shared__ uint32_t mask[kFewTokens];
  __shared__ float weight[kFew ? kFewTokens : 1][kLocal];
  __shared__ int total[kLocal], before[kLocal], start[kLocal], part[kLocal];
  __shared__ int place[kChunk][kTopK];
  __shared__ uint32_t moved[kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = blockIdx.x, chunks = gridDim.x;
  const int slice = blockIdx.y, slices = gridDim.y;
  if (threadIdx.x < kLocal) total[threadIdx.x] = before[threadIdx.x] = 0;
  let_next_start();
  if (kFew) {
    for (int t = warp; t < kFewTokens; t += kChunk) {
      if (t < a.num_tokens)
        route_token(a, t, &mask[t], weight[t]);
      else if (lane == 0)
        mask[t] = 0;
    }
  } else {
    wait_for_previous();
    const bool past_the_end = a.first_row > 0 && a.scratch.start[kLocal + 1] <= a.first_row;
    if (past_the_end && (chunk > 0 || slice > 0)) return;  // the first block says that the window is empty
  }
  __syncthreads();
  auto column_of = [&](int c) {
    return kFew ? tokens_of_expert(mask[c * kChunk + lane]) : a.scratch.column[c * kLocal + lane];
  };

  int rows = 0, earlier = 0;
  for (int c = warp; c < chunks; c += kChunk) {
    const int here = __popc(column_of(c));
    rows += here;
    earlier += c < chunk ? here : 0;
  }
  if (warp < chunks) {
    atomicAdd(&total[lane], rows);
    atomicAdd(&before[lane], earlier);
  }
  __syncthreads();

  // Lane e of every warp: expert e's rows; warp w: the chunk's token w.
  const int count = total[lane];
  int end = count;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(kAll, end, d);
    end += lane >= d ? other : 0;
  }
  const int first = end - count;
  const int start_here = min(max(first - a.first_row, 0), a.window), end_here = min(max(end - a.first_row, 0), a.window);
  const uint32_t column = column_of(chunk);
  const bool has = column >> warp & 1;
  const int row = first + before[lane] + __popc(column & ((1u << warp) - 1));
  const int row_here = row - a.first_row;
  const bool inside = has && row_here >= 0 && row_here < a.window;
  const uint32_t earlier_lanes = (1u << lane) - 1, all_bits = __ballot_sync(kAll, has);
  const uint32_t bits = __ballot_sync(kAll, inside);
  const int token = chunk * kChunk + warp;

  if (inside) place[warp][__popc(bits & earlier_lanes)] = row_here;
  if (lane == 0) moved[warp] = bits;
  if (warp == 0) start[lane] = start_here, part[lane] = end_here - start_here;
  if (slice == 0 && a.first_row == 0 && token < a.num_tokens) {
    Pair* pair = a.scratch.pair + (size_t)token * kTopK;
    if (has) {
      const float w = kFew ? weight[token % kFewTokens][lane] : a.scratch.weight[(size_t)token * kLocal + lane];
      pair[__popc(all_bits & earlier_lanes)] = {row, w};
    }
    if (lane >= __popc(all_bits) && lane < kTopK) pair[lane] = {-1, 0.0f};
  }
  if (chunk == 0 && slice == 0 && warp == 0) {
    a.scratch.start[lane] = start_here;
    if (lane == kLocal - 1) a.scratch.start[kLocal] = end_here;
    if (lane == kLocal - 1 && a.first_row == 0) a.scratch.start[kLocal + 1] = end;
    describe_group(*a.scratch.gemm1, a.weights_first1, end_here - start_here, 2 * kInter, kHidden, a.scratch.x, a.w1,
                   a.scratch.g, a.scratch.x_scale, a.w1_scale, start_here);
    describe_group(*a.scratch.gemm2, a.weights_first2, end_here - start_here, kHidden, kInter, a.scratch.h, a.w2,
                   a.scratch.y, a.scratch.h_scale, a.w2_scale, start_here);
  }

  // x: a warp a token; each piece is read once, however many experts get it.
  if (bits) {
    const int pieces = kPieces / slices, first_piece = slice * pieces;
    const uint4* from = reinterpret_cast<const uint4*>(a.x + (size_t)token * kHidden) + lane;
    for (int base = 0; base < pieces; base += kAtOnce) {
      uint4 piece[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        if (base + i < pieces) piece[i] = __ldg(from + 32 * (first_piece + base + i));
      for (uint32_t left = bits; left; left &= left - 1) {
        const int to_row = __shfl_sync(kAll, row_here, __ffs(left) - 1);
        uint4* to = reinterpret_cast<uint4*>(a.scratch.x + (size_t)to_row * kHidden) + lane;
#pragma unroll
        for (int i = 0; i < kAtOnce; i++)
          if (base + i < pieces) to[32 * (first_piece + base + i)] = piece[i];
      }
    }
  }

  // Scales: a warp a block of 128 columns, a lane a token, as they lie together in memory.
  __syncthreads();
  const int mine = chunk * kChunk + lane;
  const int blocks = kK1 / slices;
  for (int i = warp; i < blocks; i += kChunk) {
    const int k = slice * blocks + i;
    const float scale = mine < a.num_tokens ? __ldg(a.x_scale + (size_t)k * a.num_tokens + mine) : 0.0f;
    int slot = 0;
    for (uint32_t left = moved[lane]; left; left &= left - 1, slot++) {
      const int e = __ffs(left) - 1, in_expert = place[lane][slot] - start[e];
      a.scratch.x_scale[(size_t)start[e] * kK1 + scale_at(in_expert, k, part[e], kK1, a.scales_by_row)] = scale;
    }
  }
}
