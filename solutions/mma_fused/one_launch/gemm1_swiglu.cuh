// gemm1_swiglu: G = x . W13^T for this CTA's tiles, h = silu(gate) * up times the routing weight, stored as fp16 with a
// power of two as scale for each row and n_block.
//
// Of a weight tile's 16 rows for an MMA, eight are of W13's first half and eight of its second, for the same columns of
// h. So the lane that has a sum of up has the gate's, too. kGateFirst says which half is up.
//
// weights     the warp's pipeline, K blocks warp, warp + kWarps, ... of each tile
// x, scales   from global memory, or with kStagedTokens from shared memory, to registers of the lane that multiplies
//             them, one K block ahead
// epilogue    sums over warps; warps 0 to 3, 8 columns of h each: SwiGLU, maximum of a row, h to global memory
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "mma_fused/one_launch/fp16.cuh"
#include "mma_fused/one_launch/fused_layer.cuh"
#include "mma_fused/one_launch/ld_global.cuh"
#include "common/cuda/numerics.cuh"
#include "mma_fused/one_launch/mxfp4_tile.cuh"
#include "mma_fused/one_launch/sum_over_warps.cuh"
#include "mma_fused/one_launch/tiled_mma.cuh"
#include "mma_fused/one_launch/weight_pipeline.cuh"

namespace mma_fused {

static_assert(kNumKBlocks1 <= Config::kWarps * kWarp,
              "a lane prefetches the weight scales of one of the warp's K blocks");

// A work item, and which block of h it is.
struct Gemm1Tile : WorkItem {
  MBlock m_block;
  int n_block;
  __device__ Gemm1Tile(const Smem& s, const WorkItem& item)
      : WorkItem(item),
        m_block(s.m_blocks[item.tile / Config::kNumNBlocks]),
        n_block(item.tile % Config::kNumNBlocks) {}
};

// ---- producer: x to registers ----

// Of 8 rows of x and a K block, what a lane multiplies: 32 bytes of row g, and the row's scale. With MXFP4 weights they
// are eight of each group.
struct XFragment {
  uint4 x[2];
  float scale;

  // from: the row's K block. load: of 8 bytes.
  template <class Load>
  __device__ void load_groups(const uint8_t* from, const Load& load) {
    from += 8 * (threadIdx.x % 4);
    const uint2 v[4] = {load(from), load(from + kGroupK), load(from + 2 * kGroupK), load(from + 3 * kGroupK)};
    x[0] = make_uint4(v[0].x, v[0].y, v[1].x, v[1].y), x[1] = make_uint4(v[2].x, v[2].y, v[3].x, v[3].y);
  }
  // B of the MMA `half` of group j's two.
  __device__ void unpack_group(int j, int half, uint32_t& b0, uint32_t& b1) const {
    const uint4& v = x[j / 2];
    unpack(__byte_perm(j % 2 ? v.z : v.x, j % 2 ? v.w : v.y, half ? 0x7531 : 0x6420), b0, b1);
  }

  __device__ void load(const Smem& s, const FusedArgs& args, const MBlock& m_block, int n, int k) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    // beyond the last row it is repeated, and the sums are not used
    const int token = s.token[m_block.first_row + min(Config::kMmaN * n + g, m_block.rows - 1)];
    if constexpr (Config::kStagedTokens > 0) {
      const bool staged = args.num_tokens <= Config::kStagedTokens;
      const uint8_t* from = (staged ? s.x(token) : args.x + token * kHidden) + k * kBlockK;
      if constexpr (kMxfp4Weights) load_groups(from, ld_v2);
      else x[0] = ld_v4(from + 32 * t), x[1] = ld_v4(from + 32 * t + 16);
      scale = ld_f32((staged ? s.x_scale() : args.x_scale) + x_scale_index(k, token, args.num_tokens));
    } else {
      const uint8_t* from = args.x + token * kHidden + k * kBlockK;
      if constexpr (kMxfp4Weights) load_groups(from, ld_global_v2);
      else x[0] = ld_global_v4(from + 32 * t), x[1] = ld_global_v4(from + 32 * t + 16);
      scale = ld_global_f32(args.x_scale + x_scale_index(k, token, args.num_tokens));
    }
  }
};

// What the lane multiplies next. These loads queue behind the weights and take longer than the MMAs of a K block, so
// they are issued a K block ahead, across tiles, too. They go to registers of their own, which are copied at the end of
// the K block: loaded in place, the compiler moved the loads up and waited for them between the MMAs.
//
// W13's scales come in the same way with kShortTiles. Else each lane loads those of one K block, a tile ahead. MXFP4's
// come with the weights.
struct PrefetchedX {
  XFragment x[Config::kMaxNTiles];
  float w_first = 0.0f, w_second = 0.0f;  // W13's scales for its first and second half

  // A tile's first K block, for 8-row tiles from `first_n` on.
  __device__ void load_first(const Smem& s, const FusedArgs& args, const Gemm1Tile& tile, int warp, int first_n) {
    const int k = tile.first_k + warp;
#pragma unroll
    for (int n = 0; n < Config::kMaxNTiles; n++)
      if (n >= first_n && Config::kMmaN * n < tile.m_block.rows && k < kNumKBlocks1)
        x[n].load(s, args, tile.m_block, n, k);
    if (Config::kShortTiles && first_n == 0 && k < kNumKBlocks1) load_weight_scales(args, tile, k);
  }
  __device__ void load_weight_scales(const FusedArgs& args, const Gemm1Tile& tile, int k) {
    if constexpr (kMxfp4Weights) return;
    const float* first = args.w1_scales(tile.m_block.expert, tile.n_block);
    if (!Config::kShortTiles && k >= kNumKBlocks1) return;
    w_first = ld_global_f32(first + k), w_second = ld_global_f32(first + k + args.kSecondScales);
  }
};

// ---- consumer ----

// acc: sums over this warp's K blocks of a tile, for up to 8 kNTiles rows. `prefetched` has the tile's first K block
// and weight scales, and afterwards those of `next`.
template <int kNTiles>
__device__ __forceinline__ void gemm1_mainloop(const Smem& s, const FusedArgs& args, WeightPipeline& weights,
                                               const Gemm1Tile& tile, const Gemm1Tile& next, PrefetchedX& prefetched,
                                               float (&acc)[kNTiles][Config::kMTiles][4]) {
  const int warp = weights.warp, lane = weights.lane, t = lane % 4;
  constexpr float kUnpackScales = kUnpackScale * kUnpackScale;  // both operands are unpacked
  const float lane_first = kUnpackScales * prefetched.w_first, lane_second = kUnpackScales * prefetched.w_second;
  if constexpr (!Config::kShortTiles) prefetched.load_weight_scales(args, next, warp + Config::kWarps * lane);
  for (int k = tile.first_k + warp; k < tile.end_k; k += Config::kWarps) {
    const bool last = k + Config::kWarps >= tile.end_k;
    const MBlock next_m_block = last ? next.m_block : tile.m_block;
    const int next_k = last ? next.first_k + warp : k + Config::kWarps;
    const float short_first = kUnpackScales * prefetched.w_first, short_second = kUnpackScales * prefetched.w_second;
    XFragment next_x[kNTiles];
#pragma unroll
    for (int n = 0; n < kNTiles; n++) next_x[n].load(s, args, next_m_block, n, next_k);
    if constexpr (Config::kShortTiles) prefetched.load_weight_scales(args, last ? next : tile, next_k);

    const uint8_t* weight_tile = weights.consumer_wait();
    if constexpr (kMxfp4Weights) {
      multiply_mxfp4_tile<false>(
          weights, weight_tile, acc,
          [&](int n, int j, int half, uint32_t& b0, uint32_t& b1) { prefetched.x[n].unpack_group(j, half, b0, b1); },
          [&](int n, int) {
            const float scale = kUnpackScale * kMxfp4UnpackScale * prefetched.x[n].scale;
            return make_float2(__shfl_sync(kFullWarp, scale, 8 * t), __shfl_sync(kFullWarp, scale, 8 * t + 4));
          });
    } else {
      const float w_first = Config::kShortTiles ? short_first : __shfl_sync(kFullWarp, lane_first, k / Config::kWarps);
      const float w_second =
          Config::kShortTiles ? short_second : __shfl_sync(kFullWarp, lane_second, k / Config::kWarps);
      multiply_weight_tile(
          weights, weight_tile, acc,
          [&](int n, int i, uint32_t& b0, uint32_t& b1) { unpack(word_of(prefetched.x[n].x[i / 4], i % 4), b0, b1); },
          [&](int n) {
            // the scales of rows 2 t and 2 t + 1 are with lanes that have these as g
            const float even = __shfl_sync(kFullWarp, prefetched.x[n].scale, 8 * t);
            const float odd = __shfl_sync(kFullWarp, prefetched.x[n].scale, 8 * t + 4);
            return make_float4(even * w_first, odd * w_first, even * w_second, odd * w_second);
          });
    }
#pragma unroll
    for (int n = 0; n < kNTiles; n++) prefetched.x[n] = next_x[n];
  }
  prefetched.load_first(s, args, next, warp, kNTiles);
}

// ---- epilogue ----

// SwiGLU and the store of h, 8 rows from first_row on; for warps 0 to 3. sum: of column 8 warp + g of the n_block,
// W13's first half for rows 2 t and 2 t + 1, then its second. row_weight: of these rows.
__device__ __forceinline__ void store_h(Smem& s, const FusedArgs& args, int first_row, int n_block, const float4& sum,
                                        const float (&row_weight)[2], int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  float h[2] = {swiglu_of_halves(sum.x, sum.z), swiglu_of_halves(sum.y, sum.w)};
#pragma unroll
  for (int p = 0; p < 2; p++) {
    h[p] *= row_weight[p];
    float amax = fabsf(h[p]);
#pragma unroll
    for (int d = 4; d < kWarp; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, d));  // lanes of this row
    if (g == 0) s.amax[warp][2 * t + p] = amax;
  }
  AmaxBarrier::sync();
#pragma unroll
  for (int p = 0; p < 2; p++) {
    const int r = 2 * t + p;
    const float amax = fmaxf(fmaxf(s.amax[0][r], s.amax[1][r]), fmaxf(s.amax[2][r], s.amax[3][r]));
    const float scale = fp16_scale(amax);
    // of 16 bytes, as FusedScratch has them, and the place in it
    const int nth = n_block % Config::kNBlocksPerKBlock, chunk = kMxfp4Weights ? 4 * nth + warp : 4 * warp + nth;
    const int place = kMxfp4Weights ? g / 2 + g % 2 * 4 : g;
    args.scratch->h[first_row + r][n_block / Config::kNBlocksPerKBlock * kBlockK + 8 * chunk + place] =
        cvt_f32_to_f16(h[p] * inverse_power_of_two(scale));
    if (warp == 0 && g == 0) args.scratch->h_scale[first_row + r][n_block] = scale;
  }
}

// Counts a tile, or a first part, when warps 0 to 3 have stored it. The last warp waits for them and counts; where it
// is not one of them, they go on; not to the next count, as sum_over_warps() comes before and needs the last warp.
__device__ __forceinline__ void signal_stored(unsigned* counter, int warp, int lane) {
  if (warp == Config::kSignalWarp) {
    StoredBarrier::sync();
    if (lane == 0) counter_arrive(counter);
  } else if (warp < Config::kMTiles) {
    StoredBarrier::arrive();
  }
}

// ---- a work item, all work items ----

template <int kNTiles>
__device__ __forceinline__ void gemm1_swiglu_tile(Smem& s, const FusedArgs& args, WeightPipeline& weights,
                                                  const Gemm1Tile& tile, const Gemm1Tile& next,
                                                  PrefetchedX& prefetched) {
  const int warp = weights.warp, lane = weights.lane;
  const MBlock& m_block = tile.m_block;
  float row_weight[kNTiles][2] = {};  // for warps 0 to 3: of rows 2 t and 2 t + 1 of each 8
  if (warp < Config::kMTiles) {
#pragma unroll
    for (int n = 0; n < kNTiles; n++) {
#pragma unroll
      for (int p = 0; p < 2; p++) {
        const int row =
            m_block.first_row + min(Config::kMmaN * n + lane % 4 * 2 + p, m_block.rows - 1);  // as XFragment
        row_weight[n][p] = args.num_tokens <= Config::kRouteAllTokens
                               ? s.row_weight[row]
                               : ld_global_cg_f32(&args.scratch->weight[s.token[row]][m_block.expert]);
      }
    }
  }
  float acc[kNTiles][Config::kMTiles][4] = {};
  gemm1_mainloop<kNTiles>(s, args, weights, tile, next, prefetched, acc);
#pragma unroll
  for (int n = 0; n < kNTiles; n++) {
    if (Config::kMmaN * n >= m_block.rows) break;
    float4 sum = sum_over_warps<Config::kWarps>(s, acc[n], warp, lane);
    if (warp >= Config::kMTiles) continue;
    if (tile.is_first_part()) {
      __stcg(&args.scratch->split_k_sums[s.scheduler.split_index][n][warp][lane], sum);
      continue;
    }
    if (tile.is_second_part()) {
      counter_wait(&args.scratch->split_k_stored[s.scheduler.split_index], 1);
      const float4 first = __ldcg(&args.scratch->split_k_sums[s.scheduler.split_index][n][warp][lane]);
      sum = make_float4(first.x + sum.x, first.y + sum.y, first.z + sum.z, first.w + sum.w);
    }
    store_h(s, args, m_block.first_row + Config::kMmaN * n, tile.n_block, sum, row_weight[n], warp, lane);
  }
}

__device__ __forceinline__ void gemm1_swiglu(Smem& s, const FusedArgs& args, WeightPipeline& weights) {
  PrefetchedX prefetched;
  WorkItem item = s.scheduler.work_item(0);
  if constexpr (Config::kShortTiles) {  // first rows and scales in front of the weights, behind which they would arrive
    if (item.tile >= 0) prefetched.load_first(s, args, Gemm1Tile(s, item), weights.warp, 0);
    weights.fill();
  }
  for (int i = 0; item.tile >= 0; i++) {
    const WorkItem next_item = s.scheduler.work_item(i + 1);
    const Gemm1Tile tile(s, item), next(s, next_item.tile >= 0 ? next_item : item);
    if (!Config::kShortTiles && i == 0) {
      prefetched.load_weight_scales(args, tile, weights.warp + Config::kWarps * weights.lane);
      prefetched.load_first(s, args, tile, weights.warp, 0);
    }
    if (tile.m_block.rows <= Config::kMmaN) gemm1_swiglu_tile<1>(s, args, weights, tile, next, prefetched);
    else gemm1_swiglu_tile<2>(s, args, weights, tile, next, prefetched);
    unsigned* counter = tile.is_first_part() ? &args.scratch->split_k_stored[s.scheduler.split_index]
                                             : &args.scratch->n_blocks_stored[tile.tile / Config::kNumNBlocks];
    signal_stored(counter, weights.warp, weights.lane);
    item = next_item;
  }
}

}  // namespace mma_fused
