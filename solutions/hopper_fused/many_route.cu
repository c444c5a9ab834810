// many_route: each token's experts and weights, then its rows: sorted by expert, and by token among an expert's.
//
//   each block       routes a run of tokens, a warp a token; transposes their masks 32 at a time; counts rows by expert
//   grid barrier     (the launch is cooperative, every block arrives before it waits)
//   each block       adds up the blocks before it, then writes down its tokens' rows, with their scales
#include "many_rows.cuh"
#include "route.cuh"

__global__ void __launch_bounds__(kRouteThreads) many_route(const ManyArgs a) {
  constexpr int kWarps = kRouteThreads / 32;
  constexpr unsigned kAll = 0xffffffffu;
  __shared__ unsigned before[kWarps][kLocal], total[kWarps][kLocal];
  __shared__ uint32_t mask[kRouteGroups * 32];         // then, of 32 tokens each, which have a row of the expert
  __shared__ int first_row[kRouteGroups + 1][kLocal];  // of the expert among 32 tokens; at the end, in all
  __shared__ Places places;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int share = (a.num_tokens + gridDim.x - 1) / gridDim.x, groups = (share + 31) / 32;
  const int first_token = min(a.num_tokens, (int)blockIdx.x * share), tokens = min(a.num_tokens - first_token, share);
  let_next_begin();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    Counters& c = *a.counters;
    c.but_last = c.stored = c.drawn[0] = c.drawn[1] = 0;
  }
  for (int i = warp; i < tokens; i += kWarps) prefetch_l2(a.logits + (size_t)(first_token + i) * kExperts + 8 * lane);
  for (int i = warp; i < 32 * groups; i += kWarps) {
    const int t = first_token + i;
    if (i < tokens) route_token(a, t, &mask[i], a.weight + (size_t)t * kLocal);
    else mask[i] = 0;
    __syncwarp();
    if (share <= kWarps && mask[i])  // so few that L2 keeps them: on their way while this block waits for the others
      for (int line = lane; line < kHidden / 128; line += 32) prefetch_l2(a.x + (size_t)t * kHidden + line * 128);
  }
  __syncthreads();
  for (int g = warp; g < groups; g += kWarps) {
    mask[32 * g + lane] = tokens_of_expert(mask[32 * g + lane]);
  }
  __syncthreads();
  if (warp == 0) {
    int rows = 0;
    for (int g = 0; g < groups; g++) {
      first_row[g][lane] = rows;
      rows += __popc(mask[32 * g + lane]);
    }
    __stcg(a.block_rows + blockIdx.x * kLocal + lane, rows);
    __syncwarp();
    if (lane == 0) arrive_gpu(&a.counters->routed);
  }
  if (threadIdx.x == 0) wait_gpu(&a.counters->routed, gridDim.x);
  __syncthreads();
  unsigned earlier = 0, all = 0;
  for (int b = warp; b < gridDim.x; b += kWarps) {
    const unsigned rows = __ldcg(a.block_rows + b * kLocal + lane);
    all += rows;
    if (b < blockIdx.x) earlier += rows;
  }
  before[warp][lane] = earlier;
  total[warp][lane] = all;
  __syncthreads();
  if (warp == 0) {
    earlier = all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) earlier += before[w][lane], all += total[w][lane];
    const int filled = (all + kRows16 - 1) / kRows16 * kRows16;
    int end = filled;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int r = __shfl_up_sync(kAll, end, d);
      end += lane >= d ? r : 0;
    }
    places.first[lane] = end - filled;
    places.rows[lane] = filled;
    total[0][lane] = all;
    first_row[kRouteGroups][lane] = end - filled + earlier;
    if (blockIdx.x == 0) a.counters->rows[lane] = all;
  }
  __syncthreads();
  for (int i = warp; i < tokens; i += kWarps) {
    const int t = first_token + i, g = i / 32;
    const unsigned column = mask[32 * g + lane];
    const bool mine = column >> i % 32 & 1;
    const unsigned bits = __ballot_sync(kAll, mine);
    const int row = first_row[kRouteGroups][lane] + first_row[g][lane] + __popc(column & ((1u << i % 32) - 1));
    int* row_of = a.row_of + (size_t)t * kTopK;
    if (mine) {
      a.row_weight[row] = a.weight[(size_t)t * kLocal + lane];
      row_of[__popc(bits & ((1u << lane) - 1))] = row;
    }
    if (lane >= __popc(bits) && lane < kTopK) row_of[lane] = -1;
    if (bits) place_row(a, places, t, bits, row);
  }
  for (int i = blockIdx.x * kWarps + warp; i < kLocal * kRows16; i += gridDim.x * kWarps) {  // rows that fill up
    const int e = i / kRows16, row = places.first[e] + total[0][e] + i % kRows16;
    if (row >= places.first[e] + places.rows[e]) continue;
    if (lane == 0) a.row_weight[row] = 0.0f;
    place_row(a, places, -1, 1u << e, row);
  }
}

cudaError_t launch_many_route(const ManyArgs& a, int blocks, cudaStream_t stream) {
  void* parameters[] = {const_cast<ManyArgs*>(&a)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(many_route), dim3(blocks), dim3(kRouteThreads), parameters, 0,
                                     stream);
}
