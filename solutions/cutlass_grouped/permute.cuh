// permute: from each token's experts to rows in expert order. It copies x and its scales into that order, and writes
// for both GEMMs and combine where everything is. The host knows nothing of this. CUTLASS takes a group's rows from one
// address, so they are copied; hopper_fused's route_permute only writes their numbers.
//
// CTA (chunk of kChunk tokens, slice of the columns of x):
//
//   step        who                           what
//   route       a warp a token                local experts as a mask, a word for 32 experts, and weights. Up to
//                                             kFewTokens tokens (kFew) in every CTA for all tokens, to shared memory;
//                                             above, route_kernel does it before, to scratch
//   transpose   a warp a word                 the chunk's masks, in place, to a column for each local expert, with a
//                                             bit for each token: counting its bits counts the expert's rows
//   count       kCountParts threads an expert rows of the expert in all chunks, and in those before this one
//   scan        a thread an expert            first row of each expert; CTA (0, 0) describes the groups of both GEMMs
//   rows        a warp a token                the token's rows, in order of experts, and its pairs for combine
//   copy        a warp a token; a warp a      x; then its scales
//               K block
//
// __syncthreads() stands between two steps; there are no other barriers. permute<false> waits for the preceding kernel
// (pdl_wait); permute<true> is launched without PDL.
#pragma once
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "common/cuda/tokens/route.cuh"
#include "cutlass_grouped/stages.cuh"
#include "common/cuda/pipeline/threads.cuh"

constexpr int kPermuteThreads = kChunk * kWarp;
constexpr int kCountParts = kPermuteThreads / kPaddedLocalExperts;  // threads that count an expert's rows together
constexpr int kVectors = (kHidden / 16 + kWarp - 1) / kWarp;        // 16-byte vectors of a row of x, of each lane
constexpr int kFewChunks = (kFewTokens + kChunk - 1) / kChunk;
static_assert(kCountParts >= 1, "one thread per local expert");
static_assert(kMaxTokenRows <= kWarp, "a warp writes the end of a token's pairs");

// CTAs that share the columns of a chunk's tokens: some 260 CTAs in all, two an SM.
inline int permute_slices(int chunks) {
  for (int slices = kVectors; slices > 1; slices--)
    if (kVectors % slices == 0 && kNumKBlocks1 % slices == 0 && chunks * slices <= 280) return slices;
  return 1;
}

// The last lanes have no last vector where H is no multiple of 512.
__device__ __forceinline__ bool lane_has_vector(int vector) {
  return kHidden % (16 * kWarp) == 0 || kWarp * vector + (int)threadIdx.x % kWarp < kHidden / 16;
}

// A CTA routes a chunk of tokens. Above kFewTokens.
__global__ void __launch_bounds__(kPermuteThreads) route_kernel(const __grid_constant__ Args args) {
  __shared__ uint32_t mask[kPaddedLocalExperts];  // [word][token]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, token = blockIdx.x * kChunk + warp;
  pdl_launch_dependents();
  if (token < args.num_tokens)
    route_token(args, token, mask + warp, kChunk, args.scratch.weight + (size_t)token * kNumLocalExperts);
  else if (lane < kMaskWords)
    mask[kChunk * lane + warp] = 0;
  __syncthreads();
  if (warp < kMaskWords)
    args.scratch.column[(size_t)blockIdx.x * kPaddedLocalExperts + threadIdx.x] = tokens_of_expert(mask[threadIdx.x]);
}

// Describes group e of a GEMM: the rows of expert e in the window.
__device__ __forceinline__ void describe_group(
    const GroupTable& table, bool swap_ab, int e, ExpertRows in_window, int n, int k, const uint8_t* activations,
    const uint8_t* weights, uint16_t* result, const float* row_scale, const float* block_scale) {
  const size_t first = in_window.first;
  table.problem[e][0] = swap_ab ? n : in_window.rows;
  table.problem[e][1] = swap_ab ? in_window.rows : n;
  table.problem[e][2] = k;
  table.activations[e] = activations + first * k;
  table.weights[e] = weights + (size_t)e * n * k;
  table.result[e] = result + first * n;
  table.row_scale[e] = row_scale + first * (k / kBlockK);
  table.block_scale[e] = block_scale + (size_t)e * (n / kBlockK) * (k / kBlockK);
  table.activations_stride[e] = k;
  table.weights_stride[e] = k;
  table.result_stride[e] = n;
}

// CTA (chunk, slice) moves its slice of the columns of the chunk's tokens; every CTA counts all rows by itself.
template <bool kFew>
__global__ void __launch_bounds__(kPermuteThreads, kFew ? 1 : 2) permute_kernel(const __grid_constant__ Args args) {
  constexpr int kAtOnce = 4;  // vectors of x in flight
  struct Moved {
    int row, expert;
  };
  // [chunk][word][token], then [chunk][expert]
  __shared__ uint32_t few_column[kFew ? kFewChunks * kPaddedLocalExperts : 1];
  __shared__ float few_weight[kFew ? kFewTokens * kNumLocalExperts : 1];  // [token][expert]
  // rows of all chunks; of those before this one
  __shared__ int total[kPaddedLocalExperts], before[kPaddedLocalExperts];
  __shared__ int word_rows[kMaskWords];           // of 32 experts
  __shared__ int first_row[kPaddedLocalExperts];  // of the chunk's rows, in the order of all
  __shared__ ExpertRows in_window[kPaddedLocalExperts];
  __shared__ Moved moved[kMaxTokenRows][kChunk];  // a token's rows in the window
  __shared__ int num_moved[kChunk];
  const Scratch& scratch = args.scratch;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int chunk = blockIdx.x, chunks = gridDim.x, slice = blockIdx.y, slices = gridDim.y;
  if (threadIdx.x < kPaddedLocalExperts) total[threadIdx.x] = before[threadIdx.x] = 0;
  pdl_launch_dependents();
  if constexpr (kFew) {
    for (int t = warp; t < kFewChunks * kChunk; t += kChunk) {
      uint32_t* mask = few_column + t / kChunk * kPaddedLocalExperts + t % kChunk;
      if (t < args.num_tokens)
        route_token(args, t, mask, kChunk, few_weight + t * kNumLocalExperts);
      else if (lane < kMaskWords)
        mask[kChunk * lane] = 0;
    }
    __syncthreads();
    for (int word = warp; word < kFewChunks * kMaskWords; word += kChunk)
      few_column[kWarp * word + lane] = tokens_of_expert(few_column[kWarp * word + lane]);
  } else {
    pdl_wait();
    const bool past_the_end = args.first_row > 0 && scratch.num_rows[1] <= args.first_row;
    if (past_the_end && (chunk > 0 || slice > 0)) return;  // the first CTA says that the window is empty
  }
  __syncthreads();
  const uint32_t* columns = kFew ? few_column : scratch.column;

  const int part = threadIdx.x / kPaddedLocalExperts;
  if (part < kCountParts && part < chunks) {
    const int e = threadIdx.x % kPaddedLocalExperts;
    int rows = 0, earlier = 0;
    for (int c = part; c < chunks; c += kCountParts) {
      const int here = __popc(columns[(size_t)c * kPaddedLocalExperts + e]);
      rows += here;
      earlier += c < chunk ? here : 0;
    }
    atomicAdd(&total[e], rows);
    atomicAdd(&before[e], earlier);
  }
  __syncthreads();

  // A thread an expert: where its rows begin and end.
  int end = 0;
  if (warp < kMaskWords) {
    end = total[threadIdx.x];
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int other = __shfl_up_sync(kFullWarp, end, d);
      end += lane >= d ? other : 0;
    }
    if (lane == kWarp - 1) word_rows[warp] = end;
  }
  __syncthreads();
  if (warp < kMaskWords) {
    const int e = threadIdx.x;
    for (int word = 0; word < warp; word++) end += word_rows[word];
    const int first = end - total[e];
    const int first_here = min(max(first - args.first_row, 0), args.window);
    const int end_here = min(max(end - args.first_row, 0), args.window);
    first_row[e] = first + before[e];
    in_window[e] = {first_here, end_here - first_here};
    if (chunk == 0 && slice == 0) {
      if (e < kNumLocalExperts) {
        describe_group(scratch.gemm1, args.swap_ab1, e, in_window[e], 2 * kIntermediate, kHidden, scratch.x, args.w1,
                       scratch.g, scratch.x_scale, args.w1_scale);
        describe_group(scratch.gemm2, args.swap_ab2, e, in_window[e], kHidden, kIntermediate, scratch.h, args.w2,
                       scratch.y, scratch.h_scale, args.w2_scale);
      }
      if (e == kPaddedLocalExperts - 1) {
        scratch.num_rows[0] = end_here;
        if (args.first_row == 0) scratch.num_rows[1] = end;
      }
    }
  }
  __syncthreads();

  // A warp a token: its rows, in order of experts.
  const int token = chunk * kChunk + warp;
  const bool writes_pairs = slice == 0 && args.first_row == 0 && token < args.num_tokens;
  int pairs = 0, rows_here = 0;
#pragma unroll 1
  for (int word = 0; word < kMaskWords; word++) {
    const int e = kWarp * word + lane;
    const uint32_t column = columns[(size_t)chunk * kPaddedLocalExperts + e], earlier_lanes = (1u << lane) - 1;
    const bool has = column >> warp & 1;
    const uint32_t all = __ballot_sync(kFullWarp, has);
    if (all == 0) continue;
    const int row = first_row[e] + __popc(column & ((1u << warp) - 1)), row_here = row - args.first_row;
    const bool inside = has && row_here >= 0 && row_here < args.window;
    const uint32_t here = __ballot_sync(kFullWarp, inside);
    if (inside) moved[rows_here + __popc(here & earlier_lanes)][warp] = {row_here, e};
    if (has && writes_pairs) {
      const size_t at = (size_t)token * kNumLocalExperts + e;
      const float w = kFew ? few_weight[at] : scratch.weight[at];
      scratch.pair[(size_t)token * kTopK + pairs + __popc(all & earlier_lanes)] = {row, w};
    }
    pairs += __popc(all);
    rows_here += __popc(here);
  }
  if (writes_pairs && lane >= pairs && lane < kTopK) scratch.pair[(size_t)token * kTopK + lane] = {-1, 0.0f};
  if (lane == 0) num_moved[warp] = rows_here;
  __syncthreads();
  if (slice == 0 && lane < rows_here) {
    const Moved mine = moved[lane][warp];
    scratch.expert_rows[mine.row] = in_window[mine.expert];
  }

  // x: each vector is read once, however many experts get it.
  if (rows_here > 0) {
    const int vectors = kVectors / slices, first_vector = slice * vectors;
    const uint4* from = reinterpret_cast<const uint4*>(args.x + (size_t)token * kHidden) + lane;
    for (int base = 0; base < vectors; base += kAtOnce) {
      uint4 vector[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        if (base + i < vectors && lane_has_vector(first_vector + base + i))
          vector[i] = __ldg(from + kWarp * (first_vector + base + i));
      for (int r = 0; r < rows_here; r++) {
        uint4* to = reinterpret_cast<uint4*>(scratch.x + (size_t)moved[r][warp].row * kHidden) + lane;
#pragma unroll
        for (int i = 0; i < kAtOnce; i++)
          if (base + i < vectors && lane_has_vector(first_vector + base + i))
            to[kWarp * (first_vector + base + i)] = vector[i];
      }
    }
  }

  // Scales: a warp a K step, a lane a token, as they lie together in memory.
  const int mine = chunk * kChunk + lane, steps = kNumKBlocks1 / slices;
  for (int i = warp; i < steps; i += kChunk) {
    const int k = slice * steps + i;
    const float scale = mine < args.num_tokens ? __ldg(args.x_scale + (size_t)k * args.num_tokens + mine) : 0.0f;
    for (int r = 0; r < num_moved[lane]; r++) {
      const Moved to = moved[r][lane];
      const ExpertRows expert = in_window[to.expert];
      const size_t at = scale_at(to.row - expert.first, k, expert.rows, kNumKBlocks1, args.scales_by_row);
      scratch.x_scale[(size_t)expert.first * kNumKBlocks1 + at] = scale;
    }
  }
}
