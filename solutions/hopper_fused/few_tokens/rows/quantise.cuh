// quantise: tokens in bf16 as FP8 rows in shared memory. Every CTA quantises all tokens: a kernel before this one, or a
// wait for other CTAs, would take longer.
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/tokens/quantise_group.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/tma.cuh"

namespace hopper_fused {

constexpr int kAtOnce = 4;  // chunks of a warp whose loads are in flight

// For the consumer warps, while the first weights are on their way: writes quantised_row, and x_scale in gemm1_smem().
// wgmma may read the rows behind a barrier of these warps.
__device__ __forceinline__ void quantise(FusedSmem& s, const FusedArgs& args) {
  constexpr int kLaneColumns = 16, kChunk = kWarp * kLaneColumns, kChunks = (kHidden + kChunk - 1) / kChunk;
  const int lane = threadIdx.x % kWarp, chunks = args.num_tokens * kChunks;
  const auto* x = reinterpret_cast<const __nv_bfloat16*>(args.x);
  for (int first = threadIdx.x / kWarp; first < chunks; first += kAtOnce * kConsumerWarps) {
    uint4 loaded[kAtOnce][kLaneColumns / 8];
#pragma unroll
    for (int n = 0; n < kAtOnce; n++) {
      const int i = first + n * kConsumerWarps, column = i % kChunks * kChunk + lane * kLaneColumns;
      if (i >= chunks || column >= kHidden) continue;
      const auto* from = reinterpret_cast<const uint4*>(x + i / kChunks * kHidden + column);
#pragma unroll
      for (int v = 0; v < kLaneColumns / 8; v++) loaded[n][v] = from[v];
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; n++) {
      const int i = first + n * kConsumerWarps, t = i / kChunks, column = i % kChunks * kChunk + lane * kLaneColumns;
      if (i >= chunks || column >= kHidden) continue;  // whole groups of lanes
      uint16_t two[kLaneColumns / 2];
      const float scale = quantise_group<kLaneColumns>(loaded[n], two);
      const auto word = [&](int j) { return two[2 * j] | (unsigned)two[2 * j + 1] << 16; };
      *reinterpret_cast<uint4*>(s.quantised_row(t) + column) = make_uint4(word(0), word(1), word(2), word(3));
      if (column % kBlockK == 0) s.gemm1_smem().x_scale()[x_scale_index(column / kBlockK, t, args.num_tokens)] = scale;
    }
  }
  fence_proxy_async_shared();
}

}  // namespace hopper_fused
