// many_layer: sizes, scratch and division of work of the four kernels for many tokens.
//
// Rows of an expert lie together, filled up to a multiple of kRows16 with zero rows. A tile is 256 weight rows by up to
// 128 rows, and a cluster of two blocks takes two at a time. Wide tiles have the rows as wgmma's M, 64 a warpgroup, and
// are efficient; narrow ones, for what is left of an expert, have the weights as M and 16, 32, 48 or 64 rows as N.
#pragma once
#include <cuda.h>

#include "layer.cuh"
#include "sm90.cuh"

constexpr int kRows16 = 16;               // wgmma's N is a multiple of this here
constexpr int kTileRows = 128;            // rows of a wide tile at most: 64 a warpgroup
constexpr int kNarrowRows = 64;           // rows of a narrow tile at most
constexpr int kTileWeights = 256;         // weight rows of a tile: two warpgroups of two m64
constexpr int kTiles1 = 2 * kInter / kTileWeights;  // tiles of weights of an expert in gemm1: 128 columns of h each
constexpr int kTiles2 = kHidden / kTileWeights;     // and in gemm2: 256 output columns each
constexpr int kCluster = 2;
constexpr int kLoadThreads = 128, kManyThreads = kConsumers + kLoadThreads;
constexpr int kRouteThreads = 1024;
constexpr int kRouteGroups = 64;           // of 32 tokens, that a block routes at most

struct Counters {
  unsigned routed;        // blocks that have counted their tokens; zero before and after each layer
  unsigned rows[kLocal];  // of each expert; written, not counted
};

struct ManyArgs : Layer {
  Counters* counters;
  float* weight;                // [T, 32]: routing weight, where the bit is set
  int* row_of;                  // [T, 8]: the token's rows, in order of expert, then -1
  unsigned* block_rows;         // [blocks, 32]: rows of each expert among a block's tokens
  float* row_weight;            // [rows]: zero where a row fills up
  int* row_token;               // [rows]: whose x it has; where a row fills up, any token's
  float* gathered_scale;        // expert by expert: [56][rows]
  uint8_t* h;                   // expert by expert: [16][terms][rows][128], swizzled
  float* h_scale;               // expert by expert: [16][rows]; times the routing weight
  uint16_t* y;                  // [rows, y_columns] bf16
  int y_columns;                // gemm2 and combine run once for each so many output columns,
  int first_column;             // from this one
};

// Which rows and weights a tile has. The rows are first .. first + n of the expert's.
struct Item {
  int expert, column, first, n;
  bool wide;
  bool shared;  // both blocks of the cluster have the same weights and different rows; else the other way round
};

// How an expert's rows are cut: pairs of tiles that share weights, and one tile more for up to kTileRows rows.
struct Cut {
  int pairs, rest;
  __device__ explicit Cut(int rows) : pairs(rows / (2 * kTileRows)), rest(rows % (2 * kTileRows)) {
    if (rest > kTileRows) pairs++, rest = 0;  // the second tile of the pair is not full
  }
};

// The experts' rows. The same in every block.
struct Work {
  int rows[kLocal], first_row[kLocal + 1];

  // For one whole warp.
  __device__ void divide(const unsigned* count) {
    const int lane = threadIdx.x % 32;
    rows[lane] = (__ldcg(count + lane) + kRows16 - 1) / kRows16 * kRows16;
    int end = rows[lane];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int r = __shfl_up_sync(0xffffffffu, end, d);
      end += lane >= d ? r : 0;
    }
    first_row[lane + 1] = end;
    if (lane == 0) first_row[0] = 0;
  }
};

// The tiles that this block takes, in order, for a whole warp. Those that take the time of a wide tile and those that
// take less stand in a line each, expert by expert, and the clusters take turns at each line: so all have as many of
// either, and neighbours work on the same expert's weights at the same time.
struct Walk {
  const Work& work;
  int rank, end[2], next[2];

  __device__ Walk(const Work& w, int column_tiles, int rank_) : work(w), rank(rank_) {
    const int column_pairs = column_tiles / 2;
    const int lane = threadIdx.x % 32;
    const Cut cut(work.rows[lane]);
    end[0] = column_pairs * (2 * cut.pairs + (cut.rest > kNarrowRows));
    end[1] = cut.rest > 0 && cut.rest <= kNarrowRows ? column_pairs : 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, end[c], d);
        end[c] += lane >= d ? before : 0;
      }
    }
    // the short ones go on where the long ones end
    const int clusters = gridDim.x / kCluster;
    next[0] = blockIdx.x / kCluster;
    next[1] = (next[0] + clusters - __shfl_sync(0xffffffffu, end[0], 31) % clusters) % clusters;
  }

  // The next tile; false when there is none.
  __device__ bool take(Item& item) {
    const int long_expert = __popc(__ballot_sync(0xffffffffu, next[0] >= end[0]));
    const int short_expert = __popc(__ballot_sync(0xffffffffu, next[1] >= end[1]));
    if (long_expert == kLocal && short_expert == kLocal) return false;
    const bool is_long = long_expert <= short_expert;
    item.expert = is_long ? long_expert : short_expert;
    const int before = __shfl_sync(0xffffffffu, is_long ? end[0] : end[1], max(item.expert - 1, 0));
    const int i = (is_long ? next[0] : next[1]) - (item.expert ? before : 0);
    (is_long ? next[0] : next[1]) += gridDim.x / kCluster;
    const Cut cut(work.rows[item.expert]);
    const int each = is_long ? 2 * cut.pairs + (cut.rest > kNarrowRows) : 1, column_pair = i / each, j = i % each;
    item.shared = is_long && j < 2 * cut.pairs;
    item.column = 2 * column_pair + (item.shared ? j / cut.pairs : rank);
    item.first = item.shared ? (j % cut.pairs * 2 + rank) * kTileRows : cut.pairs * 2 * kTileRows;
    item.n = min(kTileRows, work.rows[item.expert] - item.first);
    item.wide = item.n > kNarrowRows;
    return true;
  }
};

constexpr int kManySlotW = kTileWeights * kBlock, kManySlotRows = kTileRows * kBlock;

// Shared memory: a ring of K steps, what leaves the block, and the division of work.
template <int kTerms>
struct ManySmem {
  static constexpr int kStages = kTerms == 1 ? 4 : 3;
  uint8_t w[kStages][kManySlotW];
  uint8_t rows[kStages][kTerms][kManySlotRows];
  uint8_t staged[2][kManySlotRows];  // a tile's result on its way to memory
  float scales[kStages][kTileRows];
  Work work;
  uint64_t full[kStages], empty[kStages];
};

// How both products begin, many_route being over: barriers, the division of work, both blocks of the cluster there.
template <class Smem>
__device__ __forceinline__ Smem& begin_many(const Counters* counters, int full_arrivals) {
  static_assert(sizeof(Smem) <= 227 * 1024, "a block may have 227 KB of shared memory");
  extern __shared__ __align__(1024) uint8_t many_smem[];
  Smem& s = *reinterpret_cast<Smem*>(many_smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Smem::kStages; i++) {
      mbar_init(&s.full[i], full_arrivals);
      mbar_init(&s.empty[i], kCluster * kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (threadIdx.x / 32 == 1) s.work.divide(counters->rows);
  __syncthreads();
  cluster_sync();
  return s;
}

// One lane of each consumer warp tells both blocks' loaders that the slot may be filled: they fill each other's.
template <class Smem>
__device__ __forceinline__ void let_go_many(Smem& s, int slot) {
  __syncwarp();
  if (threadIdx.x % 32 < kCluster) mbar_arrive_at(&s.empty[slot], threadIdx.x % 32);
}

// raw = a . b^T over one K step of 128, 64 x N; added to raw unless it is the first.
template <int N>
__device__ __forceinline__ void product_step(float (&raw)[N / 2], uint64_t a, uint64_t b, bool first) {
#pragma unroll
  for (int i = 0; i < 4; i++) Wgmma<N>::mma(raw, a + 2 * i, b + 2 * i, i > 0 || !first);
}

template <int N>
struct Rows {
  static constexpr int count = N;
};
// Calls f with a narrow tile's rows as a type.
template <class F>
__device__ __forceinline__ void with_narrow_rows(int n, F f) {
  switch (n / kRows16) {
    case 1: return f(Rows<16>());
    case 2: return f(Rows<32>());
    case 3: return f(Rows<48>());
    default: return f(Rows<64>());
  }
}

// Launches a kernel that calls wait_for_previous(), in clusters of so many blocks.
template <class... Parameters>
cudaError_t launch_next(void (*kernel)(Parameters...), int blocks, int threads, int cluster, int shared_bytes,
                        cudaStream_t stream, const Parameters&... parameters) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {(unsigned)cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks / cluster * cluster);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

cudaError_t prepare_many_gemm1();  // once for each device
cudaError_t prepare_many_gemm2();
cudaError_t launch_many_route(const ManyArgs& a, int blocks, cudaStream_t stream);
cudaError_t launch_many_gemm1(const ManyArgs& a, const CUtensorMap& w1, int terms, int blocks, cudaStream_t stream);
cudaError_t launch_many_gemm2(const ManyArgs& a, const CUtensorMap& w2, int terms, int blocks, cudaStream_t stream);
cudaError_t launch_many_combine(const ManyArgs& a, int blocks, cudaStream_t stream);
