// many_route: each token's experts and weights, then its rows: sorted by expert, and by token among an expert's.
//
//   each block       routes a run of tokens, a warp a token; transposes their masks 32 at a time; counts rows by expert
//   grid barrier     (the launch is cooperative, every block arrives before it waits)
//   each block       adds up the blocks before it, then writes its share of the GEMMs' lists of tiles, and its tokens' rows,
//                    with their scales
#include "row_lists.cuh"
#include "route.cuh"

constexpr int kReduceParts = kRouteThreads / kPaddedLocal;  // of the blocks, that add up rows side by side
// Tokens of a block at least: where there are many experts, fewer blocks are faster to add up than more tokens to route.
constexpr int kMinTokensPerCta = kMaskWords <= 2 ? 1 : 8;

// Adds the numbers of the threads before, over the first kPaddedLocal threads of a block, and its own. All of these call it.
template <int COUNT>
__device__ __forceinline__ void scan_experts(int (&v)[COUNT], int (*word_sums)[kMaskWords]) {
  const int lane = threadIdx.x % 32, word = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, v[i], d);
      v[i] += lane >= d ? before : 0;
    }
    if (lane == 31) word_sums[i][word] = v[i];
  }
  named_barrier_sync(1, kPaddedLocal);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    for (int w = 0; w < word; w++) v[i] += word_sums[i][w];
}

__global__ void __launch_bounds__(kRouteThreads) many_route(const ManyArgs args) {
  constexpr int kWarps = kRouteThreads / 32;
  constexpr unsigned kFullWarp = 0xffffffffu;
  __shared__ unsigned before[kReduceParts][kPaddedLocal], total[kReduceParts][kPaddedLocal];
  __shared__ int long_end[kPaddedLocal], short_end[kPaddedLocal], word_sums[4][kMaskWords];
  __shared__ ExpertRows expert_rows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tokens_per_cta = max(kMinTokensPerCta, (int)((args.num_tokens + gridDim.x - 1) / gridDim.x));
  const int batches = (tokens_per_cta + 31) / 32, ctas = (args.num_tokens + tokens_per_cta - 1) / tokens_per_cta;  // those with tokens
  extern __shared__ uint32_t mask[];  // by 32 tokens: [word][token]; then which of the tokens have a row: [expert]
  int* first_row = reinterpret_cast<int*>(mask + batches * kPaddedLocal);  // of the expert among 32 tokens; at the end, in all
  int* first_row_in_all = first_row + batches * kPaddedLocal;
  const int first_token = min(args.num_tokens, (int)blockIdx.x * tokens_per_cta), tokens = min(args.num_tokens - first_token, tokens_per_cta);
  pdl_launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    Counters& c = *args.counters;
    c.stored_but_last = c.stored_all = 0;
    for (int i = 0; i < kMaxColumnPasses; i++) c.drawn[i] = 0;
  }
  constexpr int kLogitBytes = kExperts * (kRenorm ? 2 : 4);
  for (int i = warp; i < tokens; i += kWarps)
    if (lane < kLogitBytes / 128)
      prefetch_l2(static_cast<const uint8_t*>(args.logits) + (size_t)(first_token + i) * kLogitBytes + 128 * lane);
  for (int i = warp; i < 32 * batches; i += kWarps) {
    const int t = first_token + i;
    uint32_t* my_mask = mask + i / 32 * kPaddedLocal + i % 32;
    if (i < tokens) route_token(args, t, my_mask, 32, args.weight + (size_t)t * kLocal);
    else if (lane < kMaskWords) my_mask[32 * lane] = 0;
    __syncwarp();
    if (tokens_per_cta <= kWarps && i < tokens) {  // so few that L2 keeps them: on their way while this block waits for the others
      unsigned any = 0;
#pragma unroll
      for (int w = 0; w < kMaskWords; w++) any |= my_mask[32 * w];
      if (any)
        for (int line = lane; line < kHidden / 128; line += 32) prefetch_l2(args.x + (size_t)t * kHidden + line * 128);
    }
  }
  __syncthreads();
  for (int i = warp; i < batches * kMaskWords; i += kWarps) mask[32 * i + lane] = tokens_of_expert(mask[32 * i + lane]);
  __syncthreads();
  if (threadIdx.x < kPaddedLocal) {
    int rows = 0;
    for (int g = 0; g < batches; g++) {
      first_row[g * kPaddedLocal + threadIdx.x] = rows;
      rows += __popc(mask[g * kPaddedLocal + threadIdx.x]);
    }
    if (tokens > 0) __stcg(args.block_rows + blockIdx.x * kPaddedLocal + threadIdx.x, rows);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    counter_arrive(&args.counters->routed);
    counter_wait(&args.counters->routed, gridDim.x);
  }
  __syncthreads();
  if (threadIdx.x < kReduceParts * kPaddedLocal) {
    const int reduce_part = threadIdx.x / kPaddedLocal, e = threadIdx.x % kPaddedLocal;
    unsigned earlier = 0, all = 0;
#pragma unroll 4
    for (int b = reduce_part; b < ctas; b += kReduceParts) {
      const unsigned rows = __ldcg(args.block_rows + b * kPaddedLocal + e);
      all += rows;
      if (b < blockIdx.x) earlier += rows;
    }
    before[reduce_part][e] = earlier;
    total[reduce_part][e] = all;
  }
  __syncthreads();
  if (threadIdx.x < kPaddedLocal) {
    const int e = threadIdx.x;
    unsigned earlier = 0, all = 0;
#pragma unroll
    for (int i = 0; i < kReduceParts; i++) earlier += before[i][e], all += total[i][e];
    const int filled = (all + kRowAlign - 1) / kRowAlign * kRowAlign;
    const RowSplit cut(filled);
    int end[4] = {filled, cut.long_tiles(), cut.short_tiles(), all > 0};
    scan_experts(end, word_sums);
    expert_rows.first[e] = end[0] - filled;
    expert_rows.rows[e] = filled;
    long_end[e] = end[1];
    short_end[e] = end[2];
    total[0][e] = all;
    first_row_in_all[e] = end[0] - filled + earlier;
    if (blockIdx.x == 0 && e == kPaddedLocal - 1) args.counters->plan = {end[1], end[2], end[3], end[0]};
  }
  __syncthreads();
  const int long_tiles = long_end[kPaddedLocal - 1], short_tiles = short_end[kPaddedLocal - 1], clusters = args.clusters;
  for (int e = blockIdx.x; e < kLocal; e += gridDim.x) {
    const int rows = expert_rows.rows[e], first = expert_rows.first[e];
    if (rows == 0) continue;
    const QueuePlace place = {e, rows, first, long_end[e], short_end[e], long_tiles, short_tiles};
    const bool early = place.early(clusters);
    write_tiles(args.tiles1, kWeightTiles1 / 2, place, early, threadIdx.x, kRouteThreads);
    write_tiles(args.tiles2, args.y_columns / (2 * kTileWeightRows), place, early, threadIdx.x, kRouteThreads);
  }
  for (int i = warp; i < tokens; i += kWarps) {
    const int t = first_token + i, g = i / 32;
    float scale[kScalesPerLane];
    read_scales(args, t, scale);
    int* token_rows = args.token_rows + (size_t)t * kMaxTokenRows;
    int count = 0;
#pragma unroll 1
    for (int w = 0; w < kMaskWords; w++) {
      const int at = g * kPaddedLocal + 32 * w + lane;
      const unsigned tokens_of = mask[at];
      const bool mine = tokens_of >> i % 32 & 1;
      const unsigned bits = __ballot_sync(kFullWarp, mine);
      if (bits == 0) continue;
      const int row = first_row_in_all[32 * w + lane] + first_row[at] + __popc(tokens_of & ((1u << i % 32) - 1));
      if (mine) {
        args.row_weight[row] = args.weight[(size_t)t * kLocal + 32 * w + lane];
        token_rows[count + __popc(bits & ((1u << lane) - 1))] = row;
      }
      place_row(args, expert_rows, t, scale, w, bits, row);
      count += __popc(bits);
    }
    if (lane >= count && lane < kMaxTokenRows) token_rows[lane] = -1;
  }
  const float nothing[kScalesPerLane] = {};
  for (int i = blockIdx.x * kWarps + warp; i < kLocal * kRowAlign; i += gridDim.x * kWarps) {  // rows that fill up
    const int e = i / kRowAlign, row = expert_rows.first[e] + total[0][e] + i % kRowAlign;
    if (row >= expert_rows.first[e] + expert_rows.rows[e]) continue;
    if (lane == 0) args.row_weight[row] = 0.0f;
    place_row(args, expert_rows, -1, nothing, e / 32, 1u << e % 32, row);
  }
}

static int shared_bytes(int tokens, int ctas) {
  int tokens_per_cta = (tokens + ctas - 1) / ctas;
  if (tokens_per_cta < kMinTokensPerCta) tokens_per_cta = kMinTokensPerCta;
  const int batches = (tokens_per_cta + 31) / 32;
  return (2 * batches + 1) * kPaddedLocal * 4;
}

cudaError_t prepare_many_route() {
  static_assert((2 * kMaxRouteBatches + 1) * kPaddedLocal * 4 <= 208 * 1024, "masks and first rows of a block's tokens");
  return cudaFuncSetAttribute(many_route, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (2 * kMaxRouteBatches + 1) * kPaddedLocal * 4);
}

cudaError_t launch_many_route(const ManyArgs& args, int ctas, cudaStream_t stream) {
  void* parameters[] = {const_cast<ManyArgs*>(&args)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(many_route), dim3(ctas), dim3(kRouteThreads), parameters,
                                     shared_bytes(args.num_tokens, ctas), stream);
}
