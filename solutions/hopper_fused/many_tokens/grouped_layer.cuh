// grouped_layer: arguments, scratch and launches of the four kernels for many tokens, in order of launch. A row is a
// pair of a token and one of its local experts.
//
//   route_permute   experts of each token; rows sorted by expert; queues of work tiles for both GEMMs
//   grouped_gemm1   h = SwiGLU(x W13^T) of all rows, in FP8
//   grouped_gemm2   y = h W2^T; starts on SMs that grouped_gemm1 has left
//   combine         output = the sum of each token's rows of y
//
// All are launched with programmatic dependent launch (PDL). So that y takes less memory, the last two may run once for
// each part of the output's columns: a column pass.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/layer/arguments.cuh"
#include "hopper_fused/many_tokens/grouped_config.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// Whether the last tiles have columns beyond H. Their weights are the next expert's, or zeros, and nobody reads their
// y.
constexpr bool kPadsColumns = y_columns_of(Grouped::kColumnPasses) * Grouped::kColumnPasses > kHidden;
constexpr int kMaxTokenRows = (kTokenExperts + 3) / 4 * 4;  // entries of a token's list of rows: whole int4s

struct Counters {
  alignas(16) TileQueues queues;  // written by route_permute
  unsigned grid_barrier;          // arrivals of route_permute's CTAs; zero before and after each layer
  // Zeroed by route_permute. Consumer warpgroups of gemm1 that have stored h of all their tiles but the last; of all.
  // The last wave is every cluster's last tile. few_rows_gemm1 counts to the same numbers.
  unsigned h_ready_except_last_wave, h_ready;
  // entries that gemm2's clusters have drawn in a pass, beyond their first ones
  unsigned next_entry[Grouped::kMaxColumnPasses];
  int singles;  // with kOddNBlocks, written by route_permute: m_blocks without a pair
};

// gemm2's TMA maps: W2, and where it stores y by TMA, y as [rows][bytes], in boxes of 16 rows by 64 columns.
struct WeightAndResultMaps {
  CUtensorMap w2, y;
};
using Gemm2Maps = std::conditional_t<Grouped::kNarrow, WeightAndResultMaps, CUtensorMap>;

struct GroupedArgs : LayerArgs {
  Counters* counters;
  float* weight;        // [T, E_local]: routing weight, where the token has the expert
  int* token_rows;      // [T, kMaxTokenRows]: the token's rows, in order of expert, then -1
  unsigned* cta_rows;   // [CTAs, kPaddedLocalExperts]: rows of each expert among the tokens of a CTA of route_permute
  uint2* queue1;        // entries of gemm1's work tiles, see tile_scheduler.cuh; with kOddNBlocks for each CTA
  uint2* queue2;        // of gemm2's
  float* row_weight;    // [rows]: routing weight; anything in rows that pad an expert
  int* row_token;       // [rows]: whose x the row has; 0 in rows that pad an expert, never its first
  float* row_x_scale;   // expert by expert: [H / 128][rows]
  uint8_t* h;           // expert by expert: [n_block of gemm1][h_split][rows][128], swizzled
  float* h_scale;       // expert by expert: [n_block of gemm1][rows]; includes the routing weight
  uint16_t* y;          // [rows, y_columns]: bf16, or with h_split 2 fp16
  float* y_scale;       // [rows, y_columns / 128]: powers of two that the fp16 are to be multiplied with
  int y_columns;        // of a column pass: y_columns_of(passes)
  int first_column;     // of this pass
  int clusters;         // of both GEMMs' grids: gemm1's schedule, and the arrivals that gemm2 waits for, rely on it
};

// h_split, 1 or 2: FP8 parts of h. prepare_...: once for each device.
cudaError_t prepare_route_permute();
cudaError_t prepare_grouped_gemm1();
cudaError_t prepare_grouped_gemm2();
cudaError_t launch_route_permute(const GroupedArgs& args, int ctas, cudaStream_t stream);
cudaError_t launch_grouped_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream);
cudaError_t launch_grouped_gemm2(const GroupedArgs& args, const Gemm2Maps& maps, int h_split, cudaStream_t stream);
cudaError_t launch_combine(const GroupedArgs& args, int h_split, int sms, cudaStream_t stream);
// In their places with MXFP4 weights, whose x is in another order of K: order_tokens.cuh. Not launched with others.
cudaError_t prepare_mxfp4_gemm1();
cudaError_t prepare_mxfp4_gemm2();
cudaError_t launch_mxfp4_gemm1(const GroupedArgs& args, const CUtensorMap& w1, int h_split, cudaStream_t stream);
cudaError_t launch_mxfp4_gemm2(const GroupedArgs& args, const CUtensorMap& w2, int h_split, cudaStream_t stream);

}  // namespace hopper_fused
