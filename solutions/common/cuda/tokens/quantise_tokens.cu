// quantise_tokens: bf16 tokens as FP8, with one fp32 scale for each token and 128 columns, in the interface's layout.
//
// It runs before the layer where there are more tokens than the layer's own kernels quantise (kQuantiseLimit of
// common/cuda/host/launch_layer.cuh). gemm1 reads a row of x again for every weight tile, so the row lies in memory as
// the FP8 bytes that are multiplied.
//
// A CTA has kColumns columns of one token. Half a warp has 128 of them, a lane 8: one 16-byte load.
#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/tokens/quantise_group.cuh"
#include "common/cuda/tokens/quantise_tokens.cuh"
#include "common/cuda/pipeline/threads.cuh"

constexpr int kLaneColumns = 8, kGroupLanes = kBlockK / kLaneColumns;
constexpr int kQuantiseThreads = 128, kColumns = kQuantiseThreads * kLaneColumns;

__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_tokens(const __nv_bfloat16* x, uint8_t* q, float* scales) {
  const int column = blockIdx.y * kColumns + threadIdx.x * kLaneColumns;
  if (column >= kHidden) return;  // a whole half of a warp, as kHidden is a multiple of 128
  const size_t at = (size_t)blockIdx.x * kHidden + column;
  const uint4 loaded[] = {__ldg(reinterpret_cast<const uint4*>(x + at))};
  uint16_t two[kLaneColumns / 2];  // two FP8 values each
  const float scale = quantise_group<kLaneColumns>(loaded, two);
  *reinterpret_cast<uint2*>(q + at) = make_uint2(two[0] | (unsigned)two[1] << 16, two[2] | (unsigned)two[3] << 16);
  if (threadIdx.x % kGroupLanes == 0) scales[x_scale_index(column / kBlockK, blockIdx.x, gridDim.x)] = scale;
}

cudaError_t launch_quantise_tokens(const void* x, int num_tokens, uint8_t* q, float* scales, cudaStream_t stream) {
  const dim3 grid(num_tokens, (kHidden + kColumns - 1) / kColumns);
  quantise_tokens<<<grid, kQuantiseThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(x), q, scales);
  return cudaGetLastError();
}
