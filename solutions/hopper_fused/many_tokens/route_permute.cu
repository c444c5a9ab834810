// route_permute: chooses each token's experts, gives each pair of a token and a local expert a row, sorted by expert
// and then by token, and writes the queues of both GEMMs. It is a cooperative launch of one CTA per SM, each with
// consecutive tokens. Up to kOneCtaTokens one CTA has all tokens: then there is no grid barrier, and gemm1's CTAs
// already wait on the other SMs.
//
//   step          who                          what
//   route         a warp a token               the token's local experts as a mask of bits, and their weights
//   count         a warp 32 tokens, then       masks transposed: a word for each expert, a bit for each token; rows of
//                 a thread an expert           each expert in this CTA, to cta_rows
//   grid barrier  thread 0 of every CTA
//   sum           kSumParts threads an expert  rows of each expert in the CTAs before this one, and in all
//   scan          a thread an expert           first row and queue entries of each expert
//   queues        a CTA an expert              the expert's entries of both GEMMs
//   rows          a warp a token               row -> token, weight, scales of x; token -> rows; then rows of padding.
//                                              Narrow experts: scales of x by a warp an expert
//
// gemm1 reads x itself, from the tokens' rows: only row numbers, weights and scales are permuted here.
//
//   barrier               arrivals              who arrives and waits    what it protects
//   counter grid_barrier  gridDim.x             thread 0 of every CTA    cta_rows is written; not with one CTA
//   named ScanBarrier     kPaddedLocalExperts   a thread an expert       word_sums are written
//
// A __syncthreads() stands between any two steps but the last two, which write different things. The grid barrier
// cannot deadlock: either all CTAs are resident or none runs, and every CTA arrives before it waits.
#include <cstdint>

#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/host/launch.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/tokens/route.cuh"
#include "hopper_fused/sizes.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "common/cuda/tokens/token_experts.cuh"

namespace hopper_fused {

// ---- sizes ----

__host__ __device__ inline int tokens_per_cta_of(int tokens, unsigned ctas) {
  return max(Grouped::kMinTokensPerCta, (int)((tokens + ctas - 1) / ctas));
}
constexpr int kScalesPerLane = (kNumKBlocks1 + kWarp - 1) / kWarp;  // of a row of x
static_assert(kMaxTokenRows <= kWarp, "a warp writes the end of a token's list of rows");

// ---- shared memory ----

using ScanBarrier = NamedBarrier<1, kPaddedLocalExperts>;

struct ExpertRows {
  int first[kPaddedLocalExperts], rows[kPaddedLocalExperts];  // an expert's first row, and its rows with padding
};
// The dynamic part (route_smem_bytes), for the CTA's tokens in batches of 32:
//   mask         [batch][word][token], bits of experts; count_rows transposes it: [batch][expert], bits of tokens
//   rows_before  [batch][expert]: the CTA's rows in earlier batches
//   first_row    [expert]: the CTA's first row

// ---- route, count ----

// Routes the CTA's tokens: writes their masks to shared memory, and their routing weights to global memory.
__device__ __forceinline__ void route_tokens(
    const GroupedArgs& args, uint32_t* mask, int first_token, int tokens, int batches, int tokens_per_cta) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kLogitBytes = kNumExperts * (kRenorm ? 2 : 4);
  for (int i = warp; !kTopKGiven && i < tokens; i += Grouped::kRouteWarps)
    if (lane < kLogitBytes / 128)
      prefetch_l2(static_cast<const uint8_t*>(args.logits) + (size_t)(first_token + i) * kLogitBytes + 128 * lane);
  for (int i = warp; i < 32 * batches; i += Grouped::kRouteWarps) {
    const int t = first_token + i;
    uint32_t* my_mask = mask + i / 32 * kPaddedLocalExperts + i % 32;
    if (i < tokens) token_experts(args, t, my_mask, 32, args.weight + (size_t)t * kNumLocalExperts);
    else if (lane < kMaskWords) my_mask[32 * lane] = 0;
    __syncwarp();
    // gemm1's x: of 132 CTAs with 32 tokens 30 MB, which L2 holds
    if (tokens_per_cta <= Grouped::kRouteWarps && i < tokens) {
      unsigned any = 0;
#pragma unroll
      for (int w = 0; w < kMaskWords; w++) any |= my_mask[32 * w];
      if (any)
        for (int line = lane; line < kHidden / 128; line += 32) prefetch_l2(args.x + (size_t)t * kHidden + line * 128);
    }
  }
}

// Returns the CTA's rows of expert threadIdx.x.
template <bool kOneCta>
__device__ __forceinline__ int count_rows(
    const GroupedArgs& args, uint32_t* mask, int* rows_before, int tokens, int batches) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int rows = 0;
  for (int i = warp; i < batches * kMaskWords; i += Grouped::kRouteWarps)
    mask[32 * i + lane] = tokens_of_expert(mask[32 * i + lane]);
  __syncthreads();
  if (threadIdx.x < kPaddedLocalExperts) {
    for (int i = 0; i < batches; i++) {
      rows_before[i * kPaddedLocalExperts + threadIdx.x] = rows;
      rows += __popc(mask[i * kPaddedLocalExperts + threadIdx.x]);
    }
    if (!kOneCta && tokens > 0) __stcg(args.cta_rows + blockIdx.x * kPaddedLocalExperts + threadIdx.x, rows);
  }
  return rows;
}

// ---- sum, scan ----

// Sums each expert's rows in the CTAs before this one, and in all, in kSumParts parts that are still to be added.
__device__ __forceinline__ void sum_counts(
    const GroupedArgs& args, int ctas, unsigned (&before)[Grouped::kSumParts][kPaddedLocalExperts],
    unsigned (&total)[Grouped::kSumParts][kPaddedLocalExperts]) {
  if (threadIdx.x < Grouped::kSumParts * kPaddedLocalExperts) {
    const int part = threadIdx.x / kPaddedLocalExperts, e = threadIdx.x % kPaddedLocalExperts;
    unsigned earlier = 0, all = 0;
#pragma unroll 4
    for (int cta = part; cta < ctas; cta += Grouped::kSumParts) {
      const unsigned rows = __ldcg(args.cta_rows + cta * kPaddedLocalExperts + e);
      all += rows;
      if (cta < blockIdx.x) earlier += rows;
    }
    before[part][e] = earlier;
    total[part][e] = all;
  }
}

// Inclusive prefix sums over the first kPaddedLocalExperts threads of the CTA, all of which call it.
template <int COUNT>
__device__ __forceinline__ void scan_experts(int (&v)[COUNT], int (*word_sums)[kMaskWords]) {
  const int lane = threadIdx.x % kWarp, word = threadIdx.x / kWarp;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int before = __shfl_up_sync(kFullWarp, v[i], d);
      v[i] += lane >= d ? before : 0;
    }
    if (lane == kWarp - 1) word_sums[i][word] = v[i];
  }
  ScanBarrier::sync();
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    for (int w = 0; w < word; w++) v[i] += word_sums[i][w];
}

// ---- rows ----

// For a whole warp: the scales of token t's x, a few in each lane; zeros without a token (t < 0).
__device__ __forceinline__ void read_scales(const GroupedArgs& args, int t, float (&scale)[kScalesPerLane]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kScalesPerLane; i++)
    scale[i] = t >= 0 && 32 * i + lane < kNumKBlocks1
                   ? args.x_scale[x_scale_index(32 * i + lane, t, args.num_tokens)]
                   : 0.0f;
}

// For a whole warp: writes token t and, with kScales, its scales to its rows of the experts 32 word + e, for the bits e
// of `experts`. Lane e knows the row of expert 32 word + e.
template <bool kScales>
__device__ __forceinline__ void write_row(const GroupedArgs& args, const ExpertRows& expert_rows, int t,
                                          const float (&scale)[kScalesPerLane], int word, unsigned experts, int row) {
  const int lane = threadIdx.x % kWarp;
  if (experts >> lane & 1) args.row_token[row] = max(t, 0);
  for (unsigned left = kScales ? experts : 0; left; left &= left - 1) {
    const int e = __ffs(left) - 1, first = expert_rows.first[32 * word + e], rows = expert_rows.rows[32 * word + e];
    const int r = __shfl_sync(kFullWarp, row, e) - first;
#pragma unroll
    for (int k = 0; k < kScalesPerLane; k++)
      if (32 * k + lane < kNumKBlocks1)
        args.row_x_scale[(size_t)first * kNumKBlocks1 + (32 * k + lane) * rows + r] = scale[k];
  }
}

// For a whole warp: writes the scales of x of `count` rows, at most 32, that lie together. Neighbouring lanes store the
// scales of neighbouring rows, for the same K block. tokens: the rows' tokens, counted from first_token.
__device__ __forceinline__ void write_scales_of_rows(const GroupedArgs& args, const uint16_t* tokens, int count,
                                                     int first_token, float* to, int expert_rows) {
  const int lane = threadIdx.x % kWarp;
  const int width = count > 16 ? 32 : count > 8 ? 16 : count > 4 ? 8 : 4;  // lanes of a K block
  const int row = lane % width;
  if (row >= count) return;
  const int token = first_token + tokens[row];
#pragma unroll 4
  for (int k = lane / width; k < kNumKBlocks1; k += kWarp / width)
    to[(size_t)k * expert_rows + row] = args.x_scale[x_scale_index(k, token, args.num_tokens)];
}

// Writes the scales of x of all the CTA's rows. A warp has an expert at a time, because a token's rows are far apart,
// but an expert's lie together.
__device__ __forceinline__ void write_scales(const GroupedArgs& args, const ExpertRows& expert_rows,
                                             const uint32_t* mask, const int* first_row, int first_token,
                                             int batches) {
  __shared__ uint16_t tokens[Grouped::kRouteWarps][kWarp];  // of the rows that come next
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int e = warp; e < kNumLocalExperts; e += Grouped::kRouteWarps) {
    const int first = expert_rows.first[e], rows = expert_rows.rows[e];
    float* to = args.row_x_scale + (size_t)first * kNumKBlocks1 + first_row[e] - first;
    int count = 0;
    const auto write = [&] {
      __syncwarp();
      write_scales_of_rows(args, tokens[warp], count, first_token, to, rows);
      __syncwarp();
      to += count;
      count = 0;
    };
    for (int i = 0; i < batches; i++) {
      const unsigned with_row = mask[i * kPaddedLocalExperts + e];
      const int more = __popc(with_row);
      if (count + more > kWarp) write();
      if (with_row >> lane & 1) tokens[warp][count + __popc(with_row & ((1u << lane) - 1))] = 32 * i + lane;
      count += more;
    }
    if (count > 0) write();
  }
}

// Writes the rows that pad each expert. total: rows of each expert, without padding. With kOneCta only their token is
// written. Their scales and weights, which are read, may be anything: they go into the results of these rows alone,
// which nobody uses.
template <bool kOneCta>
__device__ __forceinline__ void write_padding(
    const GroupedArgs& args, const ExpertRows& expert_rows, const unsigned* total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if constexpr (kOneCta) {
    for (int e = warp; e < kNumLocalExperts; e += Grouped::kRouteWarps)
      if (total[e] + lane < expert_rows.rows[e]) args.row_token[expert_rows.first[e] + total[e] + lane] = 0;
    return;
  }
  const float no_scale[kScalesPerLane] = {};
  for (int i = blockIdx.x * Grouped::kRouteWarps + warp; i < kNumLocalExperts * Grouped::kRowAlign;
       i += gridDim.x * Grouped::kRouteWarps) {
    const int e = i / Grouped::kRowAlign, row = expert_rows.first[e] + total[e] + i % Grouped::kRowAlign;
    if (row >= expert_rows.first[e] + expert_rows.rows[e]) continue;
    if (lane == 0) args.row_weight[row] = 0.0f;
    write_row<true>(args, expert_rows, -1, no_scale, e / 32, 1u << e % 32, row);
  }
}

// ---- kernel ----

template <bool kOneCta>
__global__ void __launch_bounds__(Grouped::kRouteThreads) route_permute(const __grid_constant__ GroupedArgs args) {
  __shared__ unsigned before[Grouped::kSumParts][kPaddedLocalExperts], total[Grouped::kSumParts][kPaddedLocalExperts];
  constexpr bool kScalesByExpert = Grouped::kNarrow && !kOneCta;
  constexpr int kSums = Grouped::kOddNBlocks ? 5 : 4;
  __shared__ int long_end[kPaddedLocalExperts], short_end[kPaddedLocalExperts], word_sums[kSums][kMaskWords];
  __shared__ int single_end[Grouped::kOddNBlocks ? kPaddedLocalExperts : 1];
  __shared__ ExpertRows expert_rows;
  extern __shared__ uint32_t mask[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int tokens_per_cta = tokens_per_cta_of(args.num_tokens, gridDim.x);
  const int batches = (tokens_per_cta + 31) / 32;
  const int ctas = (args.num_tokens + tokens_per_cta - 1) / tokens_per_cta;  // those with tokens
  int* rows_before = reinterpret_cast<int*>(mask + batches * kPaddedLocalExperts);
  int* first_row = rows_before + batches * kPaddedLocalExperts;
  const int first_token = min(args.num_tokens, (int)blockIdx.x * tokens_per_cta);
  const int tokens = min(args.num_tokens - first_token, tokens_per_cta);

  pdl_wait();
  pdl_launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    Counters& c = *args.counters;
    c.h_ready_except_last_wave = c.h_ready = 0;
    for (int i = 0; i < Grouped::kMaxColumnPasses; i++) c.next_entry[i] = 0;
  }

  // route, count, sum
  route_tokens(args, mask, first_token, tokens, batches, tokens_per_cta);
  __syncthreads();
  [[maybe_unused]] const int rows = count_rows<kOneCta>(args, mask, rows_before, tokens, batches);
  if constexpr (!kOneCta) {
    __syncthreads();
    if (threadIdx.x == 0) {
      counter_arrive(&args.counters->grid_barrier);
      counter_wait(&args.counters->grid_barrier, gridDim.x);
    }
    __syncthreads();

    sum_counts(args, ctas, before, total);
    __syncthreads();
  }

  // scan
  if (threadIdx.x < kPaddedLocalExperts) {
    const int e = threadIdx.x;
    unsigned earlier = 0, all = 0;
    if constexpr (kOneCta) {
      all = rows;
    } else {
#pragma unroll
      for (int i = 0; i < Grouped::kSumParts; i++) earlier += before[i][e], all += total[i][e];
    }
    const int padded = (all + Grouped::kRowAlign - 1) / Grouped::kRowAlign * Grouped::kRowAlign;
    const MBlocks blocks(padded);
    int end[kSums] = {padded, blocks.long_entries(), blocks.short_entries(), all > 0};
    if constexpr (Grouped::kOddNBlocks) end[4] = blocks.rest > 0;
    scan_experts(end, word_sums);
    expert_rows.first[e] = end[0] - padded;
    expert_rows.rows[e] = padded;
    long_end[e] = end[1];
    short_end[e] = end[2];
    if constexpr (Grouped::kOddNBlocks) single_end[e] = end[4];
    total[0][e] = all;
    first_row[e] = end[0] - padded + earlier;
    if (blockIdx.x == 0 && e == kPaddedLocalExperts - 1) args.counters->queues = {end[1], end[2], end[3], end[0]};
    if constexpr (Grouped::kOddNBlocks)
      if (blockIdx.x == 0 && e == kPaddedLocalExperts - 1) args.counters->singles = end[4];
  }
  __syncthreads();

  // queues
  const int long_entries = long_end[kPaddedLocalExperts - 1], short_entries = short_end[kPaddedLocalExperts - 1];
  const int clusters = args.clusters;
  const int writers = kOneCta ? kWarp : Grouped::kRouteThreads;  // of an expert's entries
  const int writer = kOneCta ? lane : threadIdx.x;
  for (int e = kOneCta ? warp : blockIdx.x; e < kNumLocalExperts; e += kOneCta ? Grouped::kRouteWarps : gridDim.x) {
    const int rows = expert_rows.rows[e], first = expert_rows.first[e];
    if (rows == 0) continue;
    QueuePlace place = {e, rows, first, long_end[e], short_end[e], long_entries, short_entries, 0, 0};
    if constexpr (Grouped::kOddNBlocks) {
      place.single_end = single_end[e];
      place.singles = single_end[kPaddedLocalExperts - 1];
    }
    const bool before_last_wave = place.before_last_wave(clusters);
    if constexpr (Grouped::kOddNBlocks) write_gemm1_entries(args.queue1, place, before_last_wave, writer, writers);
    else write_entries(args.queue1, Grouped::kNumNBlocks1 / 2, place, before_last_wave, writer, writers);
    write_entries(args.queue2, args.y_columns / (2 * Grouped::kBlockN), place, before_last_wave, writer, writers);
  }

  // rows
  for (int i = warp; i < tokens; i += Grouped::kRouteWarps) {
    const int t = first_token + i, batch = i / 32;
    float scale[kScalesPerLane];
    if constexpr (!kScalesByExpert) read_scales(args, t, scale);
    int* token_rows = args.token_rows + (size_t)t * kMaxTokenRows;
    int count = 0;  // of this token's rows so far
#pragma unroll 1
    for (int w = 0; w < kMaskWords; w++) {
      const int at = batch * kPaddedLocalExperts + 32 * w + lane;
      const unsigned tokens_with_row = mask[at];
      const bool mine = tokens_with_row >> i % 32 & 1;
      const unsigned bits = __ballot_sync(kFullWarp, mine);
      if (bits == 0) continue;
      const int row = first_row[32 * w + lane] + rows_before[at] + __popc(tokens_with_row & ((1u << i % 32) - 1));
      if (mine) {
        args.row_weight[row] = args.weight[(size_t)t * kNumLocalExperts + 32 * w + lane];
        token_rows[count + __popc(bits & ((1u << lane) - 1))] = row;
      }
      write_row<!kScalesByExpert>(args, expert_rows, t, scale, w, bits, row);
      count += __popc(bits);
    }
    if (lane >= count && lane < kMaxTokenRows) token_rows[lane] = -1;
  }
  if constexpr (kScalesByExpert) write_scales(args, expert_rows, mask, first_row, first_token, batches);
  write_padding<kOneCta>(args, expert_rows, total[0]);
}

// ---- host ----

cudaError_t prepare_route_permute() {
  static_assert(Grouped::route_smem_bytes(1) <= 16 * 1024, "one CTA's is less than needs to be asked for");
  return cudaFuncSetAttribute(route_permute<false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              Grouped::route_smem_bytes(Grouped::kMaxRouteBatches));
}

cudaError_t launch_route_permute(const GroupedArgs& args, int ctas, cudaStream_t stream) {
  if (args.num_tokens <= Grouped::kOneCtaTokens)
    return launch_with_pdl(route_permute<true>, 1, Grouped::kRouteThreads, clusters_of(1),
                           Grouped::route_smem_bytes(1), stream, args);
  const int batches = (tokens_per_cta_of(args.num_tokens, ctas) + 31) / 32;
  return launch_with_pdl(route_permute<false>, ctas, Grouped::kRouteThreads, cooperative(),
                         Grouped::route_smem_bytes(batches), stream, args);
}

}  // namespace hopper_fused
