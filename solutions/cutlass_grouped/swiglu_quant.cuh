// swiglu_quant: h = swiglu(up, gate) in FP8, with one fp32 scale for each row and 128 columns. No shared memory and no
// barriers: lanes that share a scale exchange maxima by shuffles. It waits for gemm1 first (pdl_wait).
#pragma once
#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/pdl.cuh"
#include "cutlass_grouped/stages.cuh"

constexpr int kSwigluThreads = 256;

// Without a clamp SwiGLU is one quotient, which rounds otherwise than the one in numerics.cuh.
__device__ __forceinline__ float h_of(float up, float gate) {
  if constexpr (kSwigluLimit == 0.0f) return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  else return swiglu(up, gate);
}

// Warps share the rows of the window; a warp takes 256 columns of a row at a time, eight a lane; at the end of a row it
// may be 128.
__global__ void __launch_bounds__(kSwigluThreads) swiglu_quant_kernel(const __grid_constant__ Args args) {
  constexpr int kColumns = kWarp * 8, kParts = (kIntermediate + kColumns - 1) / kColumns;
  const Scratch& scratch = args.scratch;
  const int lane = threadIdx.x % kWarp, warp = (blockIdx.x * kSwigluThreads + threadIdx.x) / kWarp;
  const int warps = gridDim.x * kSwigluThreads / kWarp;
  pdl_launch_dependents();
  pdl_wait();
  const int num_rows = scratch.num_rows[0];
  for (int item = warp; item < num_rows * kParts; item += warps) {
    const int row = item / kParts, column = item % kParts * kColumns + lane * 8;
    const ExpertRows expert = scratch.expert_rows[row];
    const uint16_t* up_at = scratch.g + (size_t)row * (2 * kIntermediate) + column;
    const bool inside = kIntermediate % kColumns == 0 || column < kIntermediate;
    const uint4 up = inside ? *reinterpret_cast<const uint4*>(up_at) : uint4{};
    const uint4 gate = inside ? *reinterpret_cast<const uint4*>(up_at + kIntermediate) : uint4{};
    const uint32_t up_word[4] = {up.x, up.y, up.z, up.w}, gate_word[4] = {gate.x, gate.y, gate.z, gate.w};
    float h[8], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 u = unpack_bf16(up_word[i]), g = unpack_bf16(gate_word[i]);
      h[2 * i] = h_of(u.x, g.x);
      h[2 * i + 1] = h_of(u.y, g.y);
      amax = fmaxf(amax, fmaxf(fabsf(h[2 * i]), fabsf(h[2 * i + 1])));
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2)  // 16 lanes: 128 columns
      amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, d));
    const float scale = amax > 1e-30f ? amax / 448.0f : 1.0f;  // what is smaller still becomes zero
    const float inverse = 1.0f / scale;
    uint32_t packed[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float* v = h + 4 * i;
      uint16_t low[1], high[1];
      quantise_fp8<1>(low, v[0] * inverse, v[1] * inverse);
      quantise_fp8<1>(high, v[2] * inverse, v[3] * inverse);
      packed[i] = low[0] | (uint32_t)high[0] << 16;
    }
    if (!inside) continue;
    *reinterpret_cast<uint2*>(scratch.h + (size_t)row * kIntermediate + column) = make_uint2(packed[0], packed[1]);
    if (lane % 16 == 0) {
      const size_t at = scale_at(row - expert.first, column / kBlockK, expert.rows, kNumKBlocks2, args.scales_by_row);
      scratch.h_scale[(size_t)expert.first * kNumKBlocks2 + at] = scale;
    }
  }
}
