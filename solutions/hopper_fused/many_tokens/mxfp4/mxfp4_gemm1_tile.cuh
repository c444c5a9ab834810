// mxfp4_gemm1_tile: the epilogue of a tile of gemm1 with MXFP4 weights: SwiGLU, FP8 in the order of K that gemm2's
// weights want, store of h. A warpgroup has 32 of the tile's 128 columns of h in each pass.
#pragma once
#include <cstdint>

#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "hopper_fused/many_tokens/gemm1_tile.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/k_order.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_gemm.cuh"

namespace hopper_fused {

// What a pass leaves of a lane's sums: of each row one column of h, before it is quantised.
template <class Rows>
struct PassColumns {
  volatile float of[Rows::kHalves][Rows::kRows / 4];  // [half][n8 of its rows][2 rows], in local memory
};

// sum[4 j + p] and sum[4 j + 2 + p] are up and gate: the first becomes h.
template <class Rows>
__device__ __forceinline__ void swiglu_of_pass(float (&sum)[Rows::kHalves][Rows::kRows / 2]) {
#pragma unroll
  for (int half = 0; half < Rows::kHalves; half++)
#pragma unroll
    for (int i = 0; i < Rows::kRows / 2; i += 4)
#pragma unroll
      for (int p = 0; p < 2; p++)
        sum[half][i + p] = swiglu_of_halves(sum[half][i + p], sum[half][i + 2 + p]);
}
template <class Rows>
__device__ __forceinline__ void keep_columns(PassColumns<Rows>& kept, const float (&sum)[Rows::kHalves][Rows::kRows / 2]) {
#pragma unroll
  for (int half = 0; half < Rows::kHalves; half++)
#pragma unroll
    for (int i = 0; i < Rows::kRows / 2; i += 4)
#pragma unroll
      for (int p = 0; p < 2; p++) kept.of[half][i / 2 + p] = sum[half][i + p];
}

// After the second pass, whose columns of h are in `sum`; the first one's are in `kept`. A row's maximum goes through
// shared memory.
template <class Rows, int kHSplit, class Smem>
__device__ __forceinline__ void quantise_and_store_h(Smem& smem, const GroupedArgs& args, const WorkTile& tile,
                                                     const PassColumns<Rows>& kept,
                                                     float (&sum)[Rows::kHalves][Rows::kRows / 2], int warpgroup) {
  constexpr int N = Rows::kRows, kHalves = Rows::kHalves, kMaxima = N * kHalves;
  static_assert((kConsumerWarps + 1) * kMaxima * sizeof(float) <= sizeof(smem.d), "maxima and inverses fit");
  static_assert(kHSplit * Grouped::kATileBytes <= sizeof(smem.d), "h fits");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // smem.d holds maxima and inverse scales; when they are read, h in their place: [part][rows][128], swizzled
  float* maxima = reinterpret_cast<float*>(smem.d);    // [8 warps][rows]
  float* inverse = maxima + kConsumerWarps * kMaxima;  // [rows]
  const float weight =
      threadIdx.x < tile.m_rows ? args.row_weight[tile.expert_first + tile.m_first + threadIdx.x] : 0.0f;
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the previous tile's h has been read from smem.d
  Gemm1ConsumersBarrier::sync();
#pragma unroll
  for (int half = 0; half < kHalves; half++)
#pragma unroll
    for (int i = 0; i < N / 2; i += 4)
#pragma unroll
      for (int p = 0; p < 2; p++) {
        sum[half][i + 2 + p] = kept.of[half][i / 2 + p];  // in the gate's place
        float amax = fmaxf(fabsf(sum[half][i + p]), fabsf(sum[half][i + 2 + p]));
#pragma unroll
        for (int d = kQuad; d < kWarp; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, d));
        if (lane < kQuad) maxima[warp * kMaxima + half * N + 2 * i + 2 * lane + p] = amax;
      }
  Gemm1ConsumersBarrier::sync();
  if (threadIdx.x < tile.m_rows) {
    float amax = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w++) amax = fmaxf(amax, maxima[w * kMaxima + threadIdx.x]);
    inverse[threadIdx.x] = store_scale(h_scale_tile(args, tile) + threadIdx.x, amax, weight);
  }
  Gemm1ConsumersBarrier::sync();
#pragma unroll
  for (int half = 0; half < kHalves; half++)
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
      const float2 scale = *reinterpret_cast<const float2*>(inverse + half * N + 2 * i + 2 * (lane % kQuad));
      sum[half][i] *= scale.x;
      sum[half][i + 1] *= scale.y;
      sum[half][i + 2] *= scale.x;
      sum[half][i + 3] *= scale.y;
    }
  Gemm1ConsumersBarrier::sync();  // h overwrites maxima and inverses
  // After transpose4 a lane's word is four columns, of pass number pass_of, of row 8 j + in_row.
  const int parity = lane / kQuad % 2, pass_of = lane / 8 % 2, in_row = 2 * (lane % kQuad) + parity;
  const int column = pass_of * 64 + warpgroup * 32 + warp % kWarpgroupWarps * 8 + lane / 16 * 4;
  const int at = swizzle_128b(in_row, k_position(column));
#pragma unroll
  for (int half = 0; half < kHalves; half++)
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      uint32_t word[kHSplit] = {};
#pragma unroll
      for (int pass = 0; pass < 2; pass++) {
        const int i = 4 * j + (pass == 0 ? 2 : 0);
        uint16_t q[kHSplit];
        quantise_fp8<kHSplit>(q, sum[half][i], sum[half][i + 1]);
#pragma unroll
        for (int part = 0; part < kHSplit; part++) word[part] |= (uint32_t)q[part] << 16 * pass;
      }
#pragma unroll
      for (int part = 0; part < kHSplit; part++)
        *reinterpret_cast<uint32_t*>(smem.d + part * Grouped::kATileBytes + (half * N / 8 + j) * kAtomBytes + at) =
            transpose4(word[part]);
    }
  fence_proxy_async_shared();
  Gemm1ConsumersBarrier::sync();
  // Warpgroup 0's leader stores hi, warpgroup 1's lo.
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (warpgroup < kHSplit)
      bulk_store(h_tile<kHSplit>(args, tile, warpgroup), smem.d + warpgroup * Grouped::kATileBytes,
                 tile.m_rows * kBlockK);
    bulk_commit();
  }
}

}  // namespace hopper_fused
