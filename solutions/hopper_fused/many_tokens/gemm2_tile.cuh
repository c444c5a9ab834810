// gemm2_tile: what grouped_gemm2's consumer warpgroups do with a tile: main loop, store of y. grouped_gemm2.cu has the
// table of barriers.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/normal_mainloop.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/smem_addr.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "hopper_fused/many_tokens/swap_ab_mainloop.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

template <int kHSplit>
using Gemm2Smem = GemmSmem<kHSplit>;

using Gemm2WarpgroupBarrier = NamedBarrier<1, kWarpgroupThreads>;  // and 2: one for each warpgroup

// Rounds two values to y's type. Where h is hi and lo, rounding y to bf16 would be most of the layer's error: combine
// adds up the rounded y of a token's rows. So y is fp16 then, with a scale for each row and 128 columns.
template <int kHSplit>
__device__ __forceinline__ unsigned pack_y(float low, float high) {
  return kHSplit == 2 ? pack_fp16(low, high) : pack_bf16(low, high);
}
// The most that a K block's sum of E4M3 products can be, with scales of one. Multiplied by the scales, it bounds a
// row's sums, so that fp16's scale is known without looking for the row's maximum.
constexpr float kKBlockBound = 448.0f * 448.0f * kBlockK;

// Reads a weight scale. Where the tile's columns lie beyond H it is some other scale, and the result is not used.
__device__ __forceinline__ float read_w_scale(const GroupedArgs& args, const float* at) {
  const float* last = args.w2_scale + kNumLocalExperts * kNumKBlocks1 * kNumKBlocks2 - 1;
  return __ldg(kPadsColumns && at > last ? last : at);
}

// For a warpgroup: copies 128 bytes of each of `rows` rows from shared memory, where they lie in swizzled atoms, to y,
// which has `columns` columns.
template <int kMaxRows>
__device__ __forceinline__ void store_rows(const uint8_t* smem_d, uint16_t* y, int columns, int rows) {
  const int thread = threadIdx.x % kWarpgroupThreads;
#pragma unroll
  for (int i = 0; i < kMaxRows / 16; i++) {
    const int row = 16 * i + thread / 8, vector = thread % 8;
    if (row >= rows) break;
    *reinterpret_cast<uint4*>(y + (size_t)row * columns + vector * 8) = *reinterpret_cast<const uint4*>(
        smem_d + row / kAtomRows * kAtomBytes + swizzle_128b(row % kAtomRows, vector * 16));
  }
}

// ---- normal tiles ----

// For a warp: rounds its 16 rows of a normal tile, and stores them by TMA to y, from `row` and `column` on. It uses two
// boxes of shared memory in turn, of 64 columns each. No other warp uses these, so no warp waits for another, and the
// stores go on beside what follows. A call always stores all of its boxes, because bulk_wait_read_but counts them.
template <int kHSplit>
__device__ __forceinline__ void store_normal_rows(uint8_t* smem_d, const CUtensorMap* y_map,
                                                  const float (&sum)[kNormalSums], const float (&inverse)[2][2],
                                                  int row, int column) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  constexpr int kColumns = kBlockK / sizeof(uint16_t);  // of a box
#pragma unroll
  for (int c = 0; c < Grouped::kBlockN / kColumns; c++) {
    uint8_t* box = smem_d + c % 2 * kMmaM * kBlockK + 2 * warp * kAtomBytes;
    const float* box_sum = sum + c * kColumns / 2;
    const float* scale = inverse[c / 2];
    if (lane == 0) bulk_wait_read_but<1>();  // the box before the last one
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = box + lane / 8 % 2 * kAtomBytes + swizzle_128b(lane % 8, (j + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pack_y<kHSplit>(box_sum[4 * j] * scale[0], box_sum[4 * j + 1] * scale[0])),
                   "r"(pack_y<kHSplit>(box_sum[4 * j + 2] * scale[1], box_sum[4 * j + 3] * scale[1])),
                   "r"(pack_y<kHSplit>(box_sum[4 * j + 4] * scale[0], box_sum[4 * j + 5] * scale[0])),
                   "r"(pack_y<kHSplit>(box_sum[4 * j + 6] * scale[1], box_sum[4 * j + 7] * scale[1]))
                   : "memory");
    }
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      tma_store_2d(y_map, box, (column + c * kColumns) * (int)sizeof(uint16_t), row);
      bulk_commit();
    }
  }
}

// sum: a normal tile's sums (normal_mainloop.cuh). bound: with kHSplit 2, a bound of the sums' absolute values for each
// weight block and row of the thread.
template <int kHSplit>
__device__ __forceinline__ void gemm2_normal_mainloop(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, const GroupedArgs& args,
    float (&sum)[kNormalSums], float (&bound)[2][2], const float* w_scale, int warpgroup) {
  // The warp's lanes hold the weight scales, and shuffles hand them out. If those of both weight blocks fit into a
  // warp, `scales` has them as [weight block][K block]; else `scales` has the first block's, and `second` the second's.
  constexpr bool kOfBoth = 2 * kNumKBlocks2 <= kWarp;
  const int row = warpgroup * kMmaM + threadIdx.x / kWarp % kWarpgroupWarps * kWarpRows + threadIdx.x % kWarp / kQuad;
  const float scales = read_w_scale(args, w_scale + threadIdx.x % kWarp % ((kOfBoth ? 2 : 1) * kNumKBlocks2));
  const float second =
      kOfBoth ? scales : read_w_scale(args, w_scale + kNumKBlocks2 + threadIdx.x % kWarp % kNumKBlocks2);
  const auto read = [&](int k, int stage) {
    const float h0 = smem.a_scale[stage][row], h1 = smem.a_scale[stage][row + 8];
    const float low = __shfl_sync(kFullWarp, scales, k);
    const float high = __shfl_sync(kFullWarp, second, (kOfBoth ? kNumKBlocks2 : 0) + k);
    const NormalScales found = {{{h0 * low, h1 * low}, {h0 * high, h1 * high}}};
    if constexpr (kHSplit == 2) {
#pragma unroll
      for (int i = 0; i < 4; i++) bound[i / 2][i % 2] += fabsf(found.of[i / 2][i % 2]) * kKBlockBound;
    }
    return found;
  };
  normal_mainloop<kHSplit, kNumKBlocks2, false>(smem, pipe, sum, warpgroup, read, [](int j) { return j / 16; });
}

// Rounds and stores a normal tile. y, y_scale: where its first row and column are.
template <int kHSplit>
__device__ __forceinline__ void store_normal(uint8_t* smem_d, const WorkTile& tile, const float (&sum)[kNormalSums],
                                             const float (&bound)[2][2], uint16_t* y, float* y_scale, int y_columns,
                                             int warpgroup) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int m_rows = tile.m_rows - warpgroup * kMmaM;  // of this warpgroup; may be more than 64
  // smem_d: [2 times 64 columns][64 rows][128 bytes], swizzled
#pragma unroll
  for (int half = 0; half < 2; half++) {  // 128 columns at a time
    const float* half_sum = sum + kNormalAccum * half;
    float inverse[2] = {1.0f, 1.0f};  // of the scales of rows lane / 4 and lane / 4 + 8 of the warp
#pragma unroll
    for (int r = 0; kHSplit == 2 && r < 2; r++) {
      const float scale = fp16_scale(bound[half][r]);
      const int row = warp * kWarpRows + lane / kQuad + 8 * r;
      if (lane % kQuad == 0 && row < m_rows)
        y_scale[(size_t)(warpgroup * kMmaM + row) * (y_columns / kBlockK) + half] = scale;
      inverse[r] = inverse_power_of_two(scale);
    }
    Gemm2WarpgroupBarrier::sync(warpgroup);
#pragma unroll
    for (int j = 0; j < kNormalN / 8; j += 2) {  // 16 rows by 16 columns
      const uint8_t* at = smem_d + j / 8 * kMmaM * kBlockK + (2 * warp + lane / 8 % 2) * kAtomBytes +
                          swizzle_128b(lane % 8, (j % 8 + lane / 16) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pack_y<kHSplit>(half_sum[4 * j] * inverse[0], half_sum[4 * j + 1] * inverse[0])),
                   "r"(pack_y<kHSplit>(half_sum[4 * j + 2] * inverse[1], half_sum[4 * j + 3] * inverse[1])),
                   "r"(pack_y<kHSplit>(half_sum[4 * j + 4] * inverse[0], half_sum[4 * j + 5] * inverse[0])),
                   "r"(pack_y<kHSplit>(half_sum[4 * j + 6] * inverse[1], half_sum[4 * j + 7] * inverse[1]))
                   : "memory");
    }
    Gemm2WarpgroupBarrier::sync(warpgroup);
#pragma unroll
    for (int c = 0; c < 2; c++)
      store_rows<kMmaM>(smem_d + c * kMmaM * kBlockK,
                        y + (size_t)warpgroup * kMmaM * y_columns + half * kNormalN + c * 64, y_columns, m_rows);
  }
}

// The same for narrow experts, by TMA. y_map: the map of all y.
template <int kHSplit>
__device__ __forceinline__ void store_narrow(uint8_t* smem_d, const WorkTile& tile, const float (&sum)[kNormalSums],
                                             const float (&bound)[2][2], const CUtensorMap* y_map, float* y_scale,
                                             int y_columns, int warpgroup) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int m_rows = tile.m_rows - warpgroup * kMmaM;  // of this warpgroup
  if (warp * kWarpRows >= m_rows) return;
  float inverse[2][2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};  // [half of the columns][row, row + 8]
  const int row = warp * kWarpRows + lane / kQuad;
#pragma unroll
  for (int i = 0; kHSplit == 2 && i < 4; i++) {
    const float scale = fp16_scale(bound[i / 2][i % 2]);
    if (lane % kQuad == 0 && row + 8 * (i % 2) < m_rows)
      y_scale[(size_t)(warpgroup * kMmaM + row + 8 * (i % 2)) * (y_columns / kBlockK) + i / 2] = scale;
    inverse[i / 2][i % 2] = inverse_power_of_two(scale);
  }
  store_normal_rows<kHSplit>(smem_d, y_map, sum, inverse,
                             tile.expert_first + tile.m_first + warpgroup * kMmaM + warp * kWarpRows,
                             tile.n_block * Grouped::kBlockN);
}

// Computes and stores a normal tile. y, y_scale: where its first row and column are.
template <int kHSplit>
__device__ __forceinline__ void gemm2_normal(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, const GroupedArgs& args,
    const WorkTile& tile, const float* w_scale, const CUtensorMap* y_map, uint16_t* y, float* y_scale,
    int warpgroup) {
  float sum[kNormalSums], bound[2][2] = {};
  gemm2_normal_mainloop<kHSplit>(smem, pipe, args, sum, bound, w_scale, warpgroup);
  uint8_t* smem_d = smem.d[warpgroup];
  if constexpr (Grouped::kNarrow)
    store_narrow<kHSplit>(smem_d, tile, sum, bound, y_map, y_scale, args.y_columns, warpgroup);
  else
    store_normal<kHSplit>(smem_d, tile, sum, bound, y, y_scale, args.y_columns, warpgroup);
}

// ---- swap-AB tiles ----

// For a warpgroup: stores its sums, half of a tile's columns, by way of smem_d; stmatrix transposes 64 columns at a
// time. inverse: the inverses of the scales of row 8 j + 2 (lane % 4) and of the next row. rows: how many of the N rows
// exist.
template <int N, int kHSplit>
__device__ __forceinline__ void store_swap_ab(uint8_t* smem_d, float (&sum)[2][N / 2], float2 (&inverse)[N / 8],
                                              uint16_t* y, int y_columns, int rows, int warpgroup, int warp, int lane) {
#pragma unroll
  for (int m = 0; m < 2; m++) {
    Gemm2WarpgroupBarrier::sync(warpgroup);
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
      const uint8_t* at =
          smem_d + (j + lane / 16) * kAtomBytes + swizzle_128b(lane % 8, (2 * warp + lane / 8 % 2) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_addr(at)),
                   "r"(pack_y<kHSplit>(sum[m][4 * j] * inverse[j].x, sum[m][4 * j + 1] * inverse[j].y)),
                   "r"(pack_y<kHSplit>(sum[m][4 * j + 2] * inverse[j].x, sum[m][4 * j + 3] * inverse[j].y)),
                   "r"(pack_y<kHSplit>(sum[m][4 * j + 4] * inverse[j + 1].x, sum[m][4 * j + 5] * inverse[j + 1].y)),
                   "r"(pack_y<kHSplit>(sum[m][4 * j + 6] * inverse[j + 1].x, sum[m][4 * j + 7] * inverse[j + 1].y))
                   : "memory");
    }
    Gemm2WarpgroupBarrier::sync(warpgroup);
    store_rows<N>(smem_d, y + warpgroup * 128 + m * kMmaM, y_columns, rows);
  }
  // the warps may write the next tile's rows to smem_d at once
  if constexpr (Grouped::kNarrow) Gemm2WarpgroupBarrier::sync(warpgroup);
}

// Computes and stores a swap-AB tile.
template <int kHSplit>
__device__ __forceinline__ void gemm2_swap_ab(
    Gemm2Smem<kHSplit>& smem, typename Gemm2Smem<kHSplit>::Pipeline& pipe, const GroupedArgs& args,
    const WorkTile& tile, const float* w_scale, uint16_t* y, float* y_scale, int warpgroup) {
  const int y_columns = args.y_columns;
  dispatch_swap_ab_rows(tile.m_rows, [&](auto m_rows) {
    constexpr int N = decltype(m_rows)::count;
    float sum[2][N / 2];
    [[maybe_unused]] float2 bound[N / 8] = {};  // as in gemm2_normal_mainloop, for each row of the thread
    // each lane has the weight scale of a K block
    const float scales =
        read_w_scale(args, w_scale + warpgroup * kNumKBlocks2 + threadIdx.x % kWarp % kNumKBlocks2);
    const auto read = [&](int k, int) {
      const float scale = __shfl_sync(kFullWarp, scales, k);
      return make_float2(scale, scale);
    };
    const auto add_to_bound = [&](const float2(&h)[N / 8], float2 w) {
      if constexpr (kHSplit == 2) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          bound[j].x += fabsf(h[j].x * w.x) * kKBlockBound;
          bound[j].y += fabsf(h[j].y * w.x) * kKBlockBound;
        }
      }
    };
    swap_ab_mainloop<N, kHSplit, kNumKBlocks2, false>(smem, pipe, sum, warpgroup, read, add_to_bound);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
    float2 inverse[N / 8];  // see store_swap_ab
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      inverse[j] = {1.0f, 1.0f};
      if constexpr (kHSplit == 2) {
        const float2 scale = {fp16_scale(bound[j].x), fp16_scale(bound[j].y)};
        if (warp == 0 && lane < kQuad) {
          float* to = y_scale + (size_t)(8 * j + 2 * lane) * (y_columns / kBlockK) + warpgroup;
          to[0] = scale.x;
          to[y_columns / kBlockK] = scale.y;
        }
        inverse[j] = {inverse_power_of_two(scale.x), inverse_power_of_two(scale.y)};
      }
    }
    if constexpr (Grouped::kNarrow) {
      if (lane == 0) bulk_wait_read();  // stores of an earlier normal tile still read smem_d
    }
    store_swap_ab<N, kHSplit>(smem.d[warpgroup], sum, inverse, y, y_columns, N, warpgroup, warp, lane);
  });
}

}  // namespace hopper_fused
