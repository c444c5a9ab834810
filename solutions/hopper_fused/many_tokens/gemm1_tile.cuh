// gemm1_tile: what grouped_gemm1's consumer warpgroups do with a tile: main loop, SwiGLU, quantisation, store of h.
// grouped_gemm1.cu has the table of barriers.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/k_order.cuh"
#include "hopper_fused/many_tokens/normal_mainloop.cuh"
#include "common/cuda/numerics.cuh"
#include "hopper_fused/many_tokens/swap_ab_mainloop.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/layer/weights.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

using Gemm1Smem = GemmSmem<1>;  // x has one part

using Gemm1ConsumersBarrier = NamedBarrier<1, kConsumerThreads>;
using Gemm1WarpgroupBarrier = NamedBarrier<2, kWarpgroupThreads>;  // and 3: one for each warpgroup

// From a row's largest absolute value: stores the scale, times the routing weight, and returns the scale's inverse.
__device__ __forceinline__ float store_scale(float* h_scale, float amax, float weight) {
  const float scale = row_scale(amax);
  *h_scale = scale * weight;
  return rcp_approx(scale);
}

// Where a tile's h begins in args.h: rows of 128 columns, swizzled. part: 0 for hi, 1 for lo.
template <int kHSplit>
__device__ __forceinline__ uint8_t* h_tile(const GroupedArgs& args, const WorkTile& tile, int part) {
  return args.h + (size_t)tile.expert_first * Grouped::kPaddedIntermediate * kHSplit +
         (size_t)(tile.n_block * kHSplit + part) * tile.expert_rows * kBlockK + tile.m_first * kBlockK;
}
__device__ __forceinline__ float* h_scale_tile(const GroupedArgs& args, const WorkTile& tile) {
  return args.h_scale + (size_t)tile.expert_first * Grouped::kNumNBlocks1 + tile.n_block * tile.expert_rows +
         tile.m_first;
}

// Where a column's byte of h is in its 128: MXFP4 weights want another order of K (k_order.cuh).
__device__ __forceinline__ int h_position(int column) { return kMxfp4Weights ? k_position(column) : column; }

// For a warpgroup: signals to gemm2 that the h that it has stored so far is in memory. gemm2 has a proxy fence before
// it reads h.
__device__ __forceinline__ void signal_h_ready(unsigned* counter) {
  if (threadIdx.x % kWarpgroupThreads != 0) return;
  bulk_wait();
  counter_arrive(counter);
}

// ---- normal tiles ----

// wgmma gives a thread sums of two rows, and the four lanes of a quad have a row's 128 columns of h between them. So a
// row's maximum needs no shared memory, and the warpgroups do not wait for each other.
__device__ __forceinline__ void gemm1_normal_mainloop(
    Gemm1Smem& smem, Gemm1Smem::Pipeline& pipe, float (&sum)[kNormalSums], int warpgroup) {
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const auto read = [&](int k, int stage) {
    const float x0 = smem.a_scale[stage][row], x1 = smem.a_scale[stage][row + 8];
    const float first = smem.w_scale[stage][k % Grouped::kWScaleBlocks];
    const float second = smem.w_scale[stage][Grouped::kWScaleBlocks + k % Grouped::kWScaleBlocks];
    return NormalScales{{{x0 * first, x1 * first}, {x0 * second, x1 * second}}};
  };
  // weight rows are interleaved: 8 of W13's first half, 8 of the second
  normal_mainloop<1, kNumKBlocks1, true>(smem, pipe, sum, warpgroup, read, [](int j) { return j % 2; });
}

// mainloop(sum): leaves the thread's sums there.
template <int kHSplit, class Smem, class Mainloop>
__device__ __forceinline__ void gemm1_normal(
    Smem& smem, const GroupedArgs& args, const WorkTile& tile, int warpgroup, Mainloop mainloop) {
  static_assert(kHSplit * kMmaM * kBlockK <= sizeof(smem.d[0]), "a warpgroup's h fits into its part of smem.d");
  const int lane = threadIdx.x % kWarp;
  const int in_warpgroup = threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + lane / kQuad;  // this thread's first row
  const int m_rows = min(kMmaM, tile.m_rows - warpgroup * kMmaM);  // of this warpgroup; the tile has more than 64
  const int first_row = tile.expert_first + tile.m_first + warpgroup * kMmaM;

  // sums
  float weight[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    weight[r] = in_warpgroup + 8 * r < m_rows ? args.row_weight[first_row + in_warpgroup + 8 * r] : 0.0f;
  float sum[kNormalSums];
  mainloop(sum);

  // SwiGLU and scales, for rows in_warpgroup and in_warpgroup + 8; sums 4 apart are a column's up and gate
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8)
#pragma unroll
      for (int p = 0; p < 2; p++) {
        sum[i + p] = swiglu_of_halves(sum[i + p], sum[i + 4 + p]);
        amax = fmaxf(amax, fabsf(sum[i + p]));
      }
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, 2));
    inverse[r] = 0.0f;
    const int row = in_warpgroup + 8 * r;
    if (lane % kQuad == 0 && row < m_rows)
      inverse[r] = store_scale(h_scale_tile(args, tile) + warpgroup * kMmaM + row, amax, weight[r]);
    inverse[r] = __shfl_sync(kFullWarp, inverse[r], lane & ~(kQuad - 1));
  }

  // h to shared memory, when the previous tile's has been read from there
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();
  Gemm1WarpgroupBarrier::sync(warpgroup);
  uint8_t* smem_d = smem.d[warpgroup];  // [part][64 rows][128], swizzled
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = in_warpgroup + 8 * r;
#pragma unroll
    for (int i = 2 * r; i < kNormalSums; i += 8) {
      uint16_t q[kHSplit];
      quantise_fp8<kHSplit>(q, sum[i] * inverse[r], sum[i + 1] * inverse[r]);
      const int column = h_position(i / 8 * 8 + 2 * (lane % kQuad));
      const int at = row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, column);
#pragma unroll
      for (int part = 0; part < kHSplit; part++)
        *reinterpret_cast<uint16_t*>(smem_d + part * kMmaM * kBlockK + at) = q[part];
    }
  }

  // h to memory
  fence_proxy_async_shared();
  Gemm1WarpgroupBarrier::sync(warpgroup);
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (m_rows > 0)
      for (int part = 0; part < kHSplit; part++)
        bulk_store(h_tile<kHSplit>(args, tile, part) + warpgroup * kMmaM * kBlockK, smem_d + part * kMmaM * kBlockK,
                   m_rows * kBlockK);
    bulk_commit();
  }
}

// ---- swap-AB tiles ----

// wgmma gives a thread a few columns of h of several rows, so a row's maximum goes through shared memory. With MXFP4
// weights the tile may have fewer rows than N.
template <int N, int kHSplit, class Smem>
__device__ __forceinline__ void swiglu_quant_swap_ab(
    Smem& smem, const GroupedArgs& args, const WorkTile& tile, float (&sum)[2][N / 2], int warpgroup) {
  constexpr int kMaxima = N > Grouped::kSwapAbRows ? N : Grouped::kSwapAbRows;  // of a warp
  static_assert((kConsumerWarps + 1) * kMaxima * sizeof(float) <= sizeof(smem.d), "maxima and inverses fit");
  static_assert(kHSplit <= 2, "one leader thread stores each part");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // smem.d holds maxima and inverse scales. When these have been read, h takes their place: [part][rows][128], swizzled
  float* maxima = reinterpret_cast<float*>(smem.d);    // [8 warps][rows]
  float* inverse = maxima + kConsumerWarps * kMaxima;  // [rows]
  const int rows = kMxfp4Weights ? tile.m_rows : N;
  const float weight = threadIdx.x < rows ? args.row_weight[tile.expert_first + tile.m_first + threadIdx.x] : 0.0f;
  if (threadIdx.x % kWarpgroupThreads == 0) bulk_wait_read();  // the previous tile's h has been read from smem.d
  Gemm1ConsumersBarrier::sync();

  // SwiGLU, and each warp's maximum of a row
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      float amax = 0.0f;
#pragma unroll
      for (int m = 0; m < 2; m++) {  // sums 2 apart are a column's up and gate
        sum[m][4 * j + p] = swiglu_of_halves(sum[m][4 * j + p], sum[m][4 * j + 2 + p]);
        amax = fmaxf(amax, fabsf(sum[m][4 * j + p]));
      }
#pragma unroll
      for (int d = kQuad; d < kWarp; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, d));
      if (lane < kQuad) maxima[warp * kMaxima + 8 * j + 2 * lane + p] = amax;
    }
  }
  Gemm1ConsumersBarrier::sync();

  // scales, a thread for each row
  if (threadIdx.x < rows) {
    float amax = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w++) amax = fmaxf(amax, maxima[w * kMaxima + threadIdx.x]);
    inverse[threadIdx.x] = store_scale(h_scale_tile(args, tile) + threadIdx.x, amax, weight);
  }
  Gemm1ConsumersBarrier::sync();
  float2 inv[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++) inv[j] = *reinterpret_cast<const float2*>(inverse + 8 * j + 2 * (lane % kQuad));
  Gemm1ConsumersBarrier::sync();  // h overwrites maxima and inverses

  // h to shared memory. After transpose4 a lane's word is four columns of row 8 j + in_row, from the warpgroup's first
  // or second wgmma (m_of).
  const int parity = lane / kQuad % 2, m_of = lane / 8 % 2, in_row = 2 * (lane % kQuad) + parity;
  const int column = warpgroup * 64 + m_of * 32 + warp % kWarpgroupWarps * 8 + lane / 16 * 4;
  const int at = swizzle_128b(in_row, h_position(column));
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    uint32_t word[kHSplit] = {};
#pragma unroll
    for (int m = 0; m < 2; m++) {
      uint16_t q[kHSplit];
      quantise_fp8<kHSplit>(q, sum[m][4 * j] * inv[j].x, sum[m][4 * j + 1] * inv[j].y);
#pragma unroll
      for (int part = 0; part < kHSplit; part++) word[part] |= (uint32_t)q[part] << 16 * m;
    }
#pragma unroll
    for (int part = 0; part < kHSplit; part++)
      *reinterpret_cast<uint32_t*>(smem.d[part] + j * kAtomBytes + at) = transpose4(word[part]);
  }

  // h to memory. Warpgroup 0's leader stores hi, warpgroup 1's lo, so that each waits for its own store before a normal
  // tile, which may follow, overwrites smem.d[warpgroup].
  fence_proxy_async_shared();
  Gemm1ConsumersBarrier::sync();
  if (threadIdx.x % kWarpgroupThreads == 0) {
    if (warpgroup < kHSplit) bulk_store(h_tile<kHSplit>(args, tile, warpgroup), smem.d[warpgroup], rows * kBlockK);
    bulk_commit();
  }
}

template <int kHSplit>
__device__ __forceinline__ void gemm1_swap_ab(
    Gemm1Smem& smem, const GroupedArgs& args, Gemm1Smem::Pipeline& pipe, const WorkTile& tile, int warpgroup) {
  dispatch_swap_ab_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    const auto read = [&](int k, int stage) {
      const float* w_scale = smem.w_scale[stage] + k % Grouped::kWScaleBlocks;
      return make_float2(w_scale[0], w_scale[Grouped::kWScaleBlocks]);
    };
    swap_ab_mainloop<N, 1, kNumKBlocks1, true>(smem, pipe, sum, warpgroup, read, [](auto&, float2) {});
    swiglu_quant_swap_ab<N, kHSplit>(smem, args, tile, sum, warpgroup);
  });
}

}  // namespace hopper_fused
