// many_layer: scratch, shared memory and launches of the four kernels for many tokens; many_tiles.cuh divides their work.
#pragma once
#include <cuda.h>

#include "fused_layer.cuh"
#include "tile_scheduler.cuh"
#include "ptx.cuh"

constexpr int kProducerThreads = 128, kGemmThreads = kConsumerThreads + kProducerThreads;
constexpr int kRouteThreads = 1024;
constexpr int kEvictFirstRows = 160;         // an expert, up to which few tiles of gemm2 share weights: these leave L2 first
// Of 32 tokens, that a block routes at most.
constexpr int kMaxRouteBatches = 208 * 1024 / 8 / kPaddedLocal - 1 < 64 ? 208 * 1024 / 8 / kPaddedLocal - 1 : 64;
constexpr int kMaxTokenRows = (kTopK + 3) / 4 * 4;  // of a token's list of rows

constexpr int kMaxColumnPasses = 8;  // gemm2 and combine are launched so many times at most, for some columns each

struct Counters {
  alignas(16) TileQueues plan;      // written, not counted
  unsigned routed;            // blocks that have counted their tokens; zero before and after each layer
  // the rest is zeroed by many_route
  unsigned stored_but_last, stored_all;  // warpgroups of gemm1 whose h is in memory: all but the last tile's, or all of it
  unsigned drawn[kMaxColumnPasses];  // tiles that clusters have drawn in gemm2's launches, besides their first
};

struct ManyArgs : Layer {
  Counters* counters;
  float* weight;                // [T, E_local]: routing weight, where the bit is set
  int* token_rows;                  // [T, kMaxTokenRows]: the token's rows, in order of expert, then -1
  unsigned* block_rows;         // [blocks, kPaddedLocal]: rows of each expert among a block's tokens
  uint2* tiles1;                // lists of tiles: long ones, then short ones
  uint2* tiles2;
  float* row_weight;            // [rows]: zero where a row fills up
  int* row_token;               // [rows]: whose x it has; where a row fills up, any token's
  float* gathered_scale;        // expert by expert: [H / 128][rows]
  uint8_t* h;                   // expert by expert: [I / 128][terms][rows][128], swizzled
  float* h_scale;               // expert by expert: [I / 128][rows]; times the routing weight
  uint16_t* y;                  // [rows, y_columns] bf16
  int y_columns;                // gemm2 and combine run once for each so many output columns,
  int first_column;             // from this one
  int clusters;                 // of both GEMMs: tiles are listed for so many, and gemm2 counts gemm1's arrivals
};

constexpr int kTileWeightBytes = kTileWeightRows * kBlockK, kTileRowBytes = kTileRows * kBlockK;

// Shared memory: a ring of K steps, and what leaves the block.
template <int kTerms>
struct GemmSmem {
  static constexpr int kStages = kTerms == 1 ? 4 : 3;
  uint8_t w[kStages][kTileWeightBytes];
  uint8_t rows[kStages][kTerms][kTileRowBytes];
  uint8_t staged[2][kTileRowBytes];  // a tile's result on its way to memory
  float scales[kStages][kTileRows];
  float w_scales[kStages][8];  // gemm1: of four K steps, of which this is one: of up's weights, then of gate's
  uint64_t full[kStages], empty[kStages];
  uint64_t tile_full[kTileStages];  // gemm2: the tile below is there
  int drawn[kTileStages][2];       // the cluster's next tile, and those before
};

// How both products begin: barriers, both blocks of the cluster there.
template <class Smem>
__device__ __forceinline__ Smem& init_gemm(int full_arrivals) {
  static_assert(sizeof(Smem) <= 227 * 1024, "a block may have 227 KB of shared memory");
  extern __shared__ __align__(1024) uint8_t many_smem[];
  Smem& s = *reinterpret_cast<Smem*>(many_smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Smem::kStages; i++) {
      mbar_init(&s.full[i], full_arrivals);
      mbar_init(&s.empty[i], kClusterCtas * kConsumerThreads / 32);
    }
    for (int i = 0; i < kTileStages; i++) mbar_init(&s.tile_full[i], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  cluster_sync();
  return s;
}

// One lane of each consumer warp tells both blocks' loaders that the slot may be filled: they fill each other's.
template <class Smem>
__device__ __forceinline__ void cluster_consumer_release(Smem& s, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 < kClusterCtas) mbar_arrive_cluster(&s.empty[stage], threadIdx.x % 32);
}

// raw = a . b^T over one K step of 128, 64 x N; added to raw unless it is the first.
template <int N>
__device__ __forceinline__ void mma_k_step(float (&raw)[N / 2], uint64_t a, uint64_t b, bool first) {
#pragma unroll
  for (int i = 0; i < 4; i++) Wgmma<N>::mma(raw, a + 2 * i, b + 2 * i, i > 0 || !first);
}

template <int N>
struct RowCount {
  static constexpr int count = N;
};
// Calls f with a narrow tile's rows as a type.
template <class F>
__device__ __forceinline__ void dispatch_swap_ab_rows(int n, F f) {
  switch (n / kRowAlign) {
    case 1: return f(RowCount<16>());
    case 2: return f(RowCount<32>());
    case 3: return f(RowCount<48>());
    default: return f(RowCount<64>());
  }
}

// Launches a kernel that calls pdl_wait(). blocks: a multiple of cluster, the blocks of a cluster.
template <class... Parameters>
cudaError_t launch_with_pdl(void (*kernel)(Parameters...), int blocks, int threads, int cluster, int shared_bytes,
                        cudaStream_t stream, const Parameters&... parameters) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {(unsigned)cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

cudaError_t prepare_many_route();  // once for each device
cudaError_t prepare_many_gemm1();
cudaError_t prepare_many_gemm2();
cudaError_t launch_many_route(const ManyArgs& args, int blocks, cudaStream_t stream);
cudaError_t launch_many_gemm1(const ManyArgs& args, const CUtensorMap& w1, int terms, cudaStream_t stream);
cudaError_t launch_many_gemm2(const ManyArgs& args, const CUtensorMap& w2, int terms, cudaStream_t stream);
cudaError_t launch_many_combine(const ManyArgs& args, int blocks, cudaStream_t stream);
