// quantise_group: 128 columns of a bf16 token as FP8 with one scale, by neighbouring lanes of a warp.
#pragma once
#include <cuda_bf16.h>

#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/pipeline/threads.cuh"

constexpr float kLeastAmax = 1e-10f;  // keeps the scale of a group of zeros, or next to it, a normal number

// For all lanes of a group, each with its kLaneColumns columns of x: writes them as pairs and returns the scale.
template <int kLaneColumns>
__device__ __forceinline__ float quantise_group(
    const uint4 (&x)[kLaneColumns / 8], uint16_t (&pairs)[kLaneColumns / 2]) {
  constexpr int kGroupLanes = kBlockK / kLaneColumns;
  const __nv_bfloat162* pair = reinterpret_cast<const __nv_bfloat162*>(x);
  float2 v[kLaneColumns / 2];
  float amax = kLeastAmax;
#pragma unroll
  for (int i = 0; i < kLaneColumns / 2; i++) {
    v[i] = __bfloat1622float2(pair[i]);
    amax = fmaxf(amax, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
  }
  const unsigned group = (kFullWarp >> (kWarp - kGroupLanes)) << threadIdx.x % kWarp / kGroupLanes * kGroupLanes;
#pragma unroll
  for (int d = 1; d < kGroupLanes; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(group, amax, d));
  const float scale = __fdiv_rn(amax, 448.0f), inverse = __frcp_rn(scale);
  // v / scale by a reciprocal and one correction, three instructions instead of a division's ten: the same FP8
  const auto divided = [&](float v) {
    const float near = v * inverse;
    return fmaf(fmaf(-near, scale, v), inverse, near);
  };
#pragma unroll
  for (int i = 0; i < kLaneColumns / 2; i++) {
    uint16_t one[1];
    quantise_fp8<1>(one, divided(v[i].x), divided(v[i].y));
    pairs[i] = one[0];
  }
  return scale;
}
