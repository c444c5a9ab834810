// swiglu_quant: h = silu(gate) * up in FP8, with one scale for each row and 128 columns.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "layer.cuh"

constexpr int kSwigluThreads = 256;

// The low and the high bf16 of a word.
__device__ __forceinline__ float2 two_floats(uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// Warps share the rows of the window; a warp takes 256 columns of a row at a time, eight a lane.
__global__ void __launch_bounds__(kSwigluThreads) swiglu_quant_kernel(const __grid_constant__ Args a) {
  constexpr uint32_t kAll = 0xffffffffu;
  constexpr int kColumns = 32 * 8, kParts = kInter / kColumns;
  const int lane = threadIdx.x % 32, warp = (blockIdx.x * kSwigluThreads + threadIdx.x) / 32;
  const int warps = gridDim.x * kSwigluThreads / 32;
  let_next_start();
  wait_for_previous();
  const int start_of_mine = a.scratch.start[lane], num_rows = a.scratch.start[kLocal];
  for (int item = warp; item < num_rows * kParts; item += warps) {
    const int row = item / kParts, column = item % kParts * kColumns + lane * 8;
    const uint16_t* up_at = a.scratch.g + (size_t)row * (2 * kInter) + column;
    const uint4 up = *reinterpret_cast<const uint4*>(up_at), gate = *reinterpret_cast<const uint4*>(up_at + kInter);
    const uint32_t up_word[4] = {up.x, up.y, up.z, up.w}, gate_word[4] = {gate.x, gate.y, gate.z, gate.w};
    float h[8], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 u = two_floats(up_word[i]), g = two_floats(gate_word[i]);
      h[2 * i] = __fdividef(g.x, 1.0f + __expf(-g.x)) * u.x;
      h[2 * i + 1] = __fdividef(g.y, 1.0f + __expf(-g.y)) * u.y;
      amax = fmaxf(amax, fmaxf(fabsf(h[2 * i]), fabsf(h[2 * i + 1])));
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(kAll, amax, d));  // 16 lanes: 128 columns
    const float scale = amax > 1e-30f ? amax / 448.0f : 1.0f;  // what is smaller still becomes zero
    const float inverse = 1.0f / scale;
    uint32_t packed[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float* v = h + 4 * i;
      const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v[0] * inverse, v[1] * inverse), __NV_SATFINITE, __NV_E4M3);
      const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v[2] * inverse, v[3] * inverse), __NV_SATFINITE, __NV_E4M3);
      packed[i] = low | high << 16;
    }
    *reinterpret_cast<uint2*>(a.scratch.h + (size_t)row * kInter + column) = make_uint2(packed[0], packed[1]);

    // the row's expert is the last one that starts at or before it: those without rows start with their successor
    const int e = 31 - __clz(__ballot_sync(kAll, start_of_mine <= row));
    const int start = __shfl_sync(kAll, start_of_mine, e), next = __shfl_sync(kAll, start_of_mine, (e + 1) % kLocal);
    const int rows = (e == kLocal - 1 ? num_rows : next) - start;
    float* expert_scale = a.scratch.h_scale + (size_t)start * kK2;
    if (lane % 16 == 0) expert_scale[scale_at(row - start, column / kBlock, rows, kK2, a.scales_by_row)] = scale;
  }
}
