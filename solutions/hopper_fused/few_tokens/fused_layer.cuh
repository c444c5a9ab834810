// fused_layer: arguments and launch of the one launch for few tokens. config.cuh explains m_block, n_block and tiles.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/layer/arguments.cuh"
#include "hopper_fused/few_tokens/config.cuh"
#include "hopper_fused/few_tokens/fused_scratch.cuh"
#include "hopper_fused/few_tokens/fused_smem.cuh"

namespace hopper_fused {

struct FusedArgs : LayerArgs {
  FusedScratch* scratch;
  // Above kSumTokens tokens, else null: [rows, H], a row of which has its routing weight, and [T, k], the row of a slot
  // or -1.
  float* y;
  int* token_rows;
  // Scales of MXFP4 weights: [E_local, 2 I, H / 32] and [E_local, H, I / 32], in a byte each.
  __device__ const uint8_t* w1_bytes() const { return reinterpret_cast<const uint8_t*>(w1_scale); }
  __device__ const uint8_t* w2_bytes() const { return reinterpret_cast<const uint8_t*>(w2_scale); }
};

// In bytes, H and I are half as many with MXFP4 weights.
struct TensorMaps {
  CUtensorMap w1;  // [E_local][I / 8][half][8 rows][H]; box: 4 groups of 8 rows of both halves, by 128 of H
  CUtensorMap w2;  // [E_local * H][I]; box: 64 x 128
};

cudaError_t prepare_fused_layer();  // once for each device
// Without x_scale, x is bf16, and kQuantiseTokens is the most.
cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);

}  // namespace hopper_fused
