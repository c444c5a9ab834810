// many_route: each token's experts and weights, then its rows: sorted by expert, and by token among an expert's.
//
//   each block       routes a run of tokens, a warp a token; transposes their masks 32 at a time; counts rows by expert
//   grid barrier     (the launch is cooperative, every block arrives before it waits)
//   each block       adds up the blocks before it, then writes its share of the GEMMs' lists of tiles, and its tokens' rows,
//                    with their scales
#include "many_rows.cuh"
#include "route.cuh"

constexpr int kSlices = kRouteThreads / kPadded;  // of the blocks, that add up rows side by side
// Tokens of a block at least: where there are many experts, fewer blocks are faster to add up than more tokens to route.
constexpr int kLeastShare = kWords <= 2 ? 1 : 8;

// Adds the numbers of the threads before, over the first kPadded threads of a block, and its own. All of these call it.
template <int COUNT>
__device__ __forceinline__ void scan_experts(int (&v)[COUNT], int (*of_word)[kWords]) {
  const int lane = threadIdx.x % 32, word = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, v[i], d);
      v[i] += lane >= d ? before : 0;
    }
    if (lane == 31) of_word[i][word] = v[i];
  }
  bar_sync(1, kPadded);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    for (int w = 0; w < word; w++) v[i] += of_word[i][w];
}

__global__ void __launch_bounds__(kRouteThreads) many_route(const ManyArgs a) {
  constexpr int kWarps = kRouteThreads / 32;
  constexpr unsigned kAll = 0xffffffffu;
  __shared__ unsigned before[kSlices][kPadded], total[kSlices][kPadded];
  __shared__ int longs_end[kPadded], shorts_end[kPadded], of_word[4][kWords];
  __shared__ Places places;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = max(kLeastShare, (int)((a.num_tokens + gridDim.x - 1) / gridDim.x));
  const int groups = (share + 31) / 32, blocks = (a.num_tokens + share - 1) / share;  // those with tokens
  extern __shared__ uint32_t mask[];  // by 32 tokens: [word][token]; then which of the tokens have a row: [expert]
  int* first_row = reinterpret_cast<int*>(mask + groups * kPadded);  // of the expert among 32 tokens; at the end, in all
  int* first_in_all = first_row + groups * kPadded;
  const int first_token = min(a.num_tokens, (int)blockIdx.x * share), tokens = min(a.num_tokens - first_token, share);
  let_next_begin();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    Counters& c = *a.counters;
    c.but_last = c.stored = 0;
    for (int i = 0; i < kMostStripes; i++) c.drawn[i] = 0;
  }
  constexpr int kLogitBytes = kExperts * (kRenorm ? 2 : 4);
  for (int i = warp; i < tokens; i += kWarps)
    if (lane < kLogitBytes / 128)
      prefetch_l2(static_cast<const uint8_t*>(a.logits) + (size_t)(first_token + i) * kLogitBytes + 128 * lane);
  for (int i = warp; i < 32 * groups; i += kWarps) {
    const int t = first_token + i;
    uint32_t* my_mask = mask + i / 32 * kPadded + i % 32;
    if (i < tokens) route_token(a, t, my_mask, 32, a.weight + (size_t)t * kLocal);
    else if (lane < kWords) my_mask[32 * lane] = 0;
    __syncwarp();
    if (share <= kWarps && i < tokens) {  // so few that L2 keeps them: on their way while this block waits for the others
      unsigned any = 0;
#pragma unroll
      for (int w = 0; w < kWords; w++) any |= my_mask[32 * w];
      if (any)
        for (int line = lane; line < kHidden / 128; line += 32) prefetch_l2(a.x + (size_t)t * kHidden + line * 128);
    }
  }
  __syncthreads();
  for (int i = warp; i < groups * kWords; i += kWarps) mask[32 * i + lane] = tokens_of_expert(mask[32 * i + lane]);
  __syncthreads();
  if (threadIdx.x < kPadded) {
    int rows = 0;
    for (int g = 0; g < groups; g++) {
      first_row[g * kPadded + threadIdx.x] = rows;
      rows += __popc(mask[g * kPadded + threadIdx.x]);
    }
    if (tokens > 0) __stcg(a.block_rows + blockIdx.x * kPadded + threadIdx.x, rows);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive_gpu(&a.counters->routed);
    wait_gpu(&a.counters->routed, gridDim.x);
  }
  __syncthreads();
  if (threadIdx.x < kSlices * kPadded) {
    const int slice = threadIdx.x / kPadded, e = threadIdx.x % kPadded;
    unsigned earlier = 0, all = 0;
#pragma unroll 4
    for (int b = slice; b < blocks; b += kSlices) {
      const unsigned rows = __ldcg(a.block_rows + b * kPadded + e);
      all += rows;
      if (b < blockIdx.x) earlier += rows;
    }
    before[slice][e] = earlier;
    total[slice][e] = all;
  }
  __syncthreads();
  if (threadIdx.x < kPadded) {
    const int e = threadIdx.x;
    unsigned earlier = 0, all = 0;
#pragma unroll
    for (int i = 0; i < kSlices; i++) earlier += before[i][e], all += total[i][e];
    const int filled = (all + kRows16 - 1) / kRows16 * kRows16;
    const Cut cut(filled);
    int end[4] = {filled, cut.longs(), cut.shorts(), all > 0};
    scan_experts(end, of_word);
    places.first[e] = end[0] - filled;
    places.rows[e] = filled;
    longs_end[e] = end[1];
    shorts_end[e] = end[2];
    total[0][e] = all;
    first_in_all[e] = end[0] - filled + earlier;
    if (blockIdx.x == 0 && e == kPadded - 1) a.counters->plan = {end[1], end[2], end[3], end[0]};
  }
  __syncthreads();
  const int longs = longs_end[kPadded - 1], shorts = shorts_end[kPadded - 1], clusters = a.clusters;
  for (int e = blockIdx.x; e < kLocal; e += gridDim.x) {
    const int rows = places.rows[e], first = places.first[e];
    if (rows == 0) continue;
    const ListPlace place = {e, rows, first, longs_end[e], shorts_end[e], longs, shorts};
    const bool early = place.early(clusters);
    write_tiles(a.tiles1, kTiles1 / 2, place, early, threadIdx.x, kRouteThreads);
    write_tiles(a.tiles2, a.y_columns / (2 * kTileWeights), place, early, threadIdx.x, kRouteThreads);
  }
  for (int i = warp; i < tokens; i += kWarps) {
    const int t = first_token + i, g = i / 32;
    float scale[kScalesALane];
    read_scales(a, t, scale);
    int* row_of = a.row_of + (size_t)t * kRowSlots;
    int slot = 0;
#pragma unroll 1
    for (int w = 0; w < kWords; w++) {
      const int at = g * kPadded + 32 * w + lane;
      const unsigned column = mask[at];
      const bool mine = column >> i % 32 & 1;
      const unsigned bits = __ballot_sync(kAll, mine);
      if (bits == 0) continue;
      const int row = first_in_all[32 * w + lane] + first_row[at] + __popc(column & ((1u << i % 32) - 1));
      if (mine) {
        a.row_weight[row] = a.weight[(size_t)t * kLocal + 32 * w + lane];
        row_of[slot + __popc(bits & ((1u << lane) - 1))] = row;
      }
      place_row(a, places, t, scale, w, bits, row);
      slot += __popc(bits);
    }
    if (lane >= slot && lane < kRowSlots) row_of[lane] = -1;
  }
  const float nothing[kScalesALane] = {};
  for (int i = blockIdx.x * kWarps + warp; i < kLocal * kRows16; i += gridDim.x * kWarps) {  // rows that fill up
    const int e = i / kRows16, row = places.first[e] + total[0][e] + i % kRows16;
    if (row >= places.first[e] + places.rows[e]) continue;
    if (lane == 0) a.row_weight[row] = 0.0f;
    place_row(a, places, -1, nothing, e / 32, 1u << e % 32, row);
  }
}

static int shared_bytes(int tokens, int blocks) {
  int share = (tokens + blocks - 1) / blocks;
  if (share < kLeastShare) share = kLeastShare;
  const int groups = (share + 31) / 32;
  return (2 * groups + 1) * kPadded * 4;
}

cudaError_t prepare_many_route() {
  static_assert((2 * kRouteGroups + 1) * kPadded * 4 <= 208 * 1024, "masks and first rows of a block's tokens");
  return cudaFuncSetAttribute(many_route, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (2 * kRouteGroups + 1) * kPadded * 4);
}

cudaError_t launch_many_route(const ManyArgs& a, int blocks, cudaStream_t stream) {
  void* parameters[] = {const_cast<ManyArgs*>(&a)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(many_route), dim3(blocks), dim3(kRouteThreads), parameters,
                                     shared_bytes(a.num_tokens, blocks), stream);
}
