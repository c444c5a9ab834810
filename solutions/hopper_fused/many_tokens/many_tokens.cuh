// many_tokens: arguments, scratch, shared memory and launches of the four kernels for many tokens.
//
//   route_permute    (route_permute.cu)  experts of each token, row lists, tile queues of both GEMMs
//   grouped_gemm1    (gemm1.cu)          grouped GEMM x W13^T, SwiGLU, FP8
//   grouped_gemm2    (gemm2.cu)          grouped GEMM h W2^T, starts as SMs become free of gemm1
//   combine  (combine.cu)        sum of each token's rows of y
//
// All are launched with programmatic dependent launch (PDL). gemm2 and combine may run in several column
// passes, so that y takes less memory.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "arguments.cuh"
#include "barrier.cuh"
#include "cluster.cuh"
#include "registers.cuh"
#include "tile_scheduler.cuh"
#include "wgmma.cuh"

constexpr int kGemmThreads = kConsumerThreads + kProducerThreads;
// The accumulators take 192 registers (normal tiles); the producer warps keep addresses only.
constexpr int kGemmProducerRegs = 56, kGemmConsumerRegs = 224;
static_assert(registers_fit(kGemmProducerRegs, kProducerThreads, kGemmConsumerRegs, kConsumerThreads), "one CTA per SM");

constexpr int kRouteThreads = 1024;
// Shared memory of route_permute: two words per local expert for each batch of 32 tokens, and one more.
constexpr int kRouteSmemBytes = 208 * 1024;
constexpr int route_smem_bytes(int batches) { return (2 * batches + 1) * kPaddedLocalExperts * 4; }
// Batches of 32 tokens that a CTA routes at most.
constexpr int kMaxRouteBatches =
    kRouteSmemBytes / 8 / kPaddedLocalExperts - 1 < 64 ? kRouteSmemBytes / 8 / kPaddedLocalExperts - 1 : 64;
static_assert(kMaxRouteBatches >= 1 && route_smem_bytes(kMaxRouteBatches) <= kRouteSmemBytes, "some tokens fit");

// gemm2's weights: evict_first up to so many rows per active expert, where few tiles share them: measured.
constexpr int kEvictFirstRows = 160;
constexpr int kMaxTokenRows = (kTopK + 3) / 4 * 4;  // entries of a token's list of rows: whole int4s
constexpr int kMaxColumnPasses = 8;                 // launches of gemm2 and combine at most

struct Counters {
  alignas(16) TileQueues queues;  // written by route_permute
  unsigned routed;                // CTAs of route_permute that have counted their rows; zero before and after each layer
  // zeroed by route_permute
  unsigned stored_but_last;  // warpgroups of gemm1 whose h is stored, all but their last tile's
  unsigned stored_all;       // warpgroups of gemm1 whose h is stored
  unsigned next_tile[kMaxColumnPasses];  // tiles that gemm2's clusters have taken, beyond their first one
};

struct ManyArgs : LayerArgs {
  Counters* counters;
  float* weight;          // [T, E_local]: routing weight, where the token has the expert
  int* token_rows;        // [T, kMaxTokenRows]: the token's rows, in order of expert, then -1
  unsigned* cta_rows;     // [CTAs, kPaddedLocalExperts]: rows of each expert among a CTA's tokens
  uint2* tiles1;          // tile queues of gemm1: long tiles, then short tiles
  uint2* tiles2;          // of gemm2
  float* row_weight;      // [rows]: routing weight; zero in rows that pad an expert
  int* row_token;         // [rows]: whose x the row has; any token's in rows that pad an expert
  float* gathered_scale;  // expert by expert: [H / 128][rows]
  uint8_t* h;             // expert by expert: [I / 128][terms][rows][128], swizzled
  float* h_scale;         // expert by expert: [I / 128][rows]; includes the routing weight
  uint16_t* y;            // [rows, y_columns]: bf16, or with two terms of h fp16
  float* y_scale;         // [rows, y_columns / 128]: powers of two that the fp16 are to be multiplied with
  int y_columns;          // output columns of a column pass of gemm2 and combine
  int first_column;       // of this pass
  int clusters;           // of both GEMMs' grids: gemm1's schedule and the arrivals that gemm2 waits for rely on it
};

constexpr int kScaleSteps = 4;  // K steps whose weight scales gemm1 copies at once: 16 bytes
constexpr int kTileWeightBytes = kTileWeightRows * kBlockK, kTileRowBytes = kTileRows * kBlockK;
constexpr int kCtaWeightBytes = kTileWeightBytes / kClusterCtas;  // a CTA's share, which it multicasts
constexpr uint16_t kAllCtas = (1 << kClusterCtas) - 1;            // multicast mask: every CTA of the cluster

// Shared memory of both GEMMs. kHSplit: FP8 terms of the row operand.
template <int kHSplit>
struct GemmSmem {
  static constexpr int kStages = kHSplit == 1 ? 4 : 3;
  uint8_t w[kStages][kTileWeightBytes];
  uint8_t rows[kStages][kHSplit][kTileRowBytes];
  uint8_t staged[2][kTileRowBytes];  // a tile's result on its way to memory
  float scales[kStages][kTileRows];
  float w_scales[kStages][2 * kScaleSteps];  // gemm1: of kScaleSteps K steps, the stage's among them; of both halves
  // mbarriers, see gemm1.cu and gemm2.cu
  uint64_t full[kStages], empty[kStages];
  uint64_t tile_full[kTileStages];
  int tile_word[kTileStages][2];  // gemm2: the cluster's next tile, packed, and those before
};

// The prologue of both GEMMs: barriers are initialised in both CTAs of the cluster.
template <class Smem>
__device__ __forceinline__ Smem& init_gemm(int full_arrivals) {
  static_assert(sizeof(Smem) <= kSmemLimit, "a CTA has 227 KB of shared memory");
  extern __shared__ __align__(1024) uint8_t gemm_smem[];
  Smem& s = *reinterpret_cast<Smem*>(gemm_smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Smem::kStages; i++) {
      mbar_init(&s.full[i], full_arrivals);
      mbar_init(&s.empty[i], kClusterCtas * kConsumerWarps);
    }
    for (int i = 0; i < kTileStages; i++) mbar_init(&s.tile_full[i], 1);
    fence_barrier_init();
  }
  __syncthreads();
  cluster_sync();
  return s;
}

// Releases a stage to the producers of both CTAs, as each fills the other's by multicast. One lane per warp and CTA.
template <class Smem>
__device__ __forceinline__ void cluster_consumer_release(Smem& s, int stage) {
  __syncwarp();
  if (threadIdx.x % kWarp < kClusterCtas) mbar_arrive_cluster(&s.empty[stage], threadIdx.x % kWarp);
}

// raw (+)= A . B^T over one K step, 64 x N. `first`: raw is overwritten.
template <int N>
__device__ __forceinline__ void mma_k_step(float (&raw)[N / 2], uint64_t desc_a, uint64_t desc_b, bool first) {
#pragma unroll
  for (int i = 0; i < kMmasPerStep; i++)
    Wgmma<N>::mma(raw, desc_a + kDescMmaK * i, desc_b + kDescMmaK * i, i > 0 || !first);
}

template <int N>
struct RowCount {
  static constexpr int count = N;
};
// Calls f with a swap-AB tile's rows as a type.
template <class F>
__device__ __forceinline__ void dispatch_swap_ab_rows(int n, F f) {
  static_assert(kRowAlign == 16 && kSwapAbRows == 64, "one case for each N");
  switch (n / kRowAlign) {
    case 1: return f(RowCount<16>());
    case 2: return f(RowCount<32>());
    case 3: return f(RowCount<48>());
    default: return f(RowCount<64>());
  }
}

cudaError_t prepare_route_permute();  // once for each device
cudaError_t prepare_grouped_gemm1();
cudaError_t prepare_grouped_gemm2();
cudaError_t launch_route_permute(const ManyArgs& args, int ctas, cudaStream_t stream);
cudaError_t launch_grouped_gemm1(const ManyArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream);
cudaError_t launch_grouped_gemm2(const ManyArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream);
cudaError_t launch_combine(const ManyArgs& args, int h_split, int sms, cudaStream_t stream);
