// quantise_tokens: bf16 tokens as FP8, with one fp32 scale for each token and 128 columns, row-major.
//
// A kernel of its own, as gemm1 reads each row of x once for every weight tile, as the bytes that it multiplies.
//
// A CTA has kColumns columns of one token. Half a warp has 128 of them, a lane 8: one 16-byte load.
#include "layer_sizes.cuh"
#include "numerics.cuh"
#include "quantise_tokens.cuh"
#include "threads.cuh"

constexpr int kLaneColumns = 8, kGroupLanes = kBlockK / kLaneColumns;
constexpr int kQuantiseThreads = 128, kColumns = kQuantiseThreads * kLaneColumns;
constexpr float kLeastAmax = 1e-10f;  // keeps the scale of a group of zeros, or next to it, a normal number

__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_tokens(const __nv_bfloat16* x, uint8_t* q, float* scales) {
  const int column = blockIdx.y * kColumns + threadIdx.x * kLaneColumns;
  if (column >= kHidden) return;  // a whole half of a warp, as kHidden is a multiple of 128
  const size_t at = (size_t)blockIdx.x * kHidden + column;
  const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(x + at));
  const __nv_bfloat162* pair = reinterpret_cast<const __nv_bfloat162*>(&loaded);
  float2 v[kLaneColumns / 2];
  float amax = kLeastAmax;
#pragma unroll
  for (int i = 0; i < kLaneColumns / 2; i++) {
    v[i] = __bfloat1622float2(pair[i]);
    amax = fmaxf(amax, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
  }
  const unsigned group = 0xffffu << threadIdx.x % kWarp / kGroupLanes * kGroupLanes;
#pragma unroll
  for (int d = 1; d < kGroupLanes; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(group, amax, d));
  const float scale = __fdiv_rn(amax, 448.0f);
  uint16_t two[kLaneColumns / 2];
#pragma unroll
  for (int i = 0; i < kLaneColumns / 2; i++) {
    uint16_t one[1];
    quantize_fp8<1>(one, __fdiv_rn(v[i].x, scale), __fdiv_rn(v[i].y, scale));
    two[i] = one[0];
  }
  *reinterpret_cast<uint2*>(q + at) = make_uint2(two[0] | (unsigned)two[1] << 16, two[2] | (unsigned)two[3] << 16);
  if (threadIdx.x % kGroupLanes == 0) scales[at / kBlockK] = scale;
}

cudaError_t launch_quantise_tokens(const void* x, int num_tokens, uint8_t* q, float* scales, cudaStream_t stream) {
  const dim3 grid(num_tokens, (kHidden + kColumns - 1) / kColumns);
  quantise_tokens<<<grid, kQuantiseThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(x), q, scales);
  return cudaGetLastError();
}
