// gemm2_combine: Y = h . W2^T for this CTA's column tiles, m_block by m_block as h is complete, added to output sums.
//
// A CTA has fp32 sums [token][column] of its own for each column tile that it works on, a slab in scratch. A token is
// in an m_block once, and a column always belongs to the same warp. So sums can be added by plain loads and stores, in
// a fixed order. With kShortTiles they are added by reductions in L2, in the same order, because there is no time to
// wait for loads.
//
// weights     the warp's pipeline, K blocks warp, warp + kGemm2Warps, ...; warps from kGemm2Warps on have other columns
// h, scales   from global memory (L2) to registers of the lane that multiplies them, one K block ahead
// epilogue    sums over warps; warps 0 to 3, or all, 16 columns each: added to the slab. At the end, slabs to output
#pragma once
#include "common/cuda/ptx/counter.cuh"
#include "mma_fused/one_launch/fp16.cuh"
#include "mma_fused/one_launch/fused_layer.cuh"
#include "mma_fused/one_launch/ld_global.cuh"
#include "common/cuda/numerics.cuh"
#include "mma_fused/one_launch/mxfp4_tile.cuh"
#include "mma_fused/one_launch/sum_over_warps.cuh"
#include "mma_fused/one_launch/tiled_mma.cuh"
#include "common/cuda/pipeline/wait_for_h.cuh"
#include "mma_fused/one_launch/weight_pipeline.cuh"

namespace mma_fused {

static_assert(kNumKBlocks2 <= Config::kGemm2Warps * kWarp,
              "a lane prefetches the weight scale of one of the warp's K blocks");

// ---- producer: h to registers ----

// What a lane multiplies of 8 rows of h and a K block: 32 columns of row g, eight in a uint4, and their scale.
struct HFragment {
  uint4 h[4];
  float scale;

  // Loads K block k of the m_block's n-th 8 rows. Rows up to a multiple of 8 are stored. For those beyond, the last one
  // is loaded again, and the sums are not used. With kShortTiles that is done for padding too, because lanes that read
  // the same row take fewer bytes from L2.
  __device__ void load(const FusedArgs& args, const MBlock& m_block, int n, int k) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    const int rows =
        Config::kShortTiles ? m_block.rows : (m_block.rows + Config::kMmaN - 1) / Config::kMmaN * Config::kMmaN;
    const int row = m_block.first_row + min(Config::kMmaN * n + g, rows - 1);
    const uint16_t* from = args.scratch->h[row] + k * kBlockK + 8 * t;
#pragma unroll
    for (int j = 0; j < 4; j++) h[j] = ld_global_cg_v4(from + 32 * j);
    scale = ld_global_cg_f32(&args.scratch->h_scale[row][k * Config::kNBlocksPerKBlock + t]);
  }
};

// What the lane multiplies next, as gemm1's PrefetchedX.
struct PrefetchedH {
  HFragment h[Config::kMaxNTiles];
  float w_scale = 0.0f;  // W2's, as W13's

  // An m_block's first K block, for 8-row tiles from `first_n` on.
  __device__ void load_first(const FusedArgs& args, const MBlock& m_block, int first_k, int first_n) {
#pragma unroll
    for (int n = 0; n < Config::kMaxNTiles; n++)
      if (n >= first_n && Config::kMmaN * n < m_block.rows && first_k < kNumKBlocks2)
        h[n].load(args, m_block, n, first_k);
  }
  __device__ void load_weight_scale(const FusedArgs& args, int expert, int column_tile, int k) {
    if constexpr (kMxfp4Weights) return;  // they come with the weights
    const float* scales = args.w2_scales(expert, column_tile);
    if (k < kNumKBlocks2) w_scale = ld_global_f32(scales + k);
  }
};

// ---- consumer ----

// Adds to acc the products of this warp's K blocks of a column tile, for up to 8 kNTiles rows.
//   prefetched            has the m_block's first K block, and afterwards, if next_ready, the next m_block's
//   w_scale               this m_block's weight scales, as PrefetchedH had them; not used with kShortTiles
//   scales, next_scales   with kShortTiles, the weight scales of this m_block and of the next, from K block 0 on
template <int kNTiles>
__device__ __forceinline__ void gemm2_mainloop(const FusedArgs& args, WeightPipeline& weights, const MBlock& m_block,
                                               const MBlock& next, bool next_ready, float w_scale, const float* scales,
                                               const float* next_scales, PrefetchedH& prefetched,
                                               float (&acc)[kNTiles][Config::kMTiles][4]) {
  const int first_k = gemm2_warp(weights.warp), t = weights.lane % 4;
  for (int k = first_k, i = 0; k < kNumKBlocks2; k += Config::kGemm2Warps, i++) {
    const bool last = k + Config::kGemm2Warps >= kNumKBlocks2;
    // The loads are unconditional, also where nothing comes next: a load under a condition was waited for at once.
    const MBlock next_m_block = last && next_ready ? next : m_block;
    const float short_scale = prefetched.w_scale;
    HFragment next_h[kNTiles];
#pragma unroll
    for (int n = 0; n < kNTiles; n++) next_h[n].load(args, next_m_block, n, last ? first_k : k + Config::kGemm2Warps);
    if constexpr (Config::kShortTiles && !kMxfp4Weights)
      prefetched.w_scale = ld_global_f32(last ? next_scales + first_k : scales + k + Config::kGemm2Warps);

    const uint8_t* weight_tile = weights.consumer_wait();
    if constexpr (kMxfp4Weights) {
      // The columns of h that meet a group of weights are one n_block, so the scales of both are applied together.
      multiply_mxfp4_tile<true>(
          weights, weight_tile, acc,
          [&](int n, int j, int half, uint32_t& b0, uint32_t& b1) {
            const uint4& h = prefetched.h[n].h[j];
            b0 = half ? h.z : h.x, b1 = half ? h.w : h.y;
          },
          [&](int n, int j) {
            const float scale = kMxfp4UnpackScale * prefetched.h[n].scale;
            return make_float2(__shfl_sync(kFullWarp, scale, 8 * t + j), __shfl_sync(kFullWarp, scale, 8 * t + 4 + j));
          });
#pragma unroll
      for (int n = 0; n < kNTiles; n++) prefetched.h[n] = next_h[n];
      continue;
    }

    const float k_scale = kUnpackScale * (Config::kShortTiles ? short_scale : __shfl_sync(kFullWarp, w_scale, i));
    // An MMA adds up columns that have four scales. The lane's h is brought to the largest of them first. The factor is
    // a power of two, so only what becomes subnormal is rounded.
    float largest[kNTiles];
    uint32_t relative[kNTiles];  // this lane's scale over the largest, as a pair of fp16
#pragma unroll
    for (int n = 0; n < kNTiles; n++) {
      const float h_scale = prefetched.h[n].scale;
      largest[n] = fmaxf(h_scale, __shfl_xor_sync(kFullWarp, h_scale, 1));
      largest[n] = fmaxf(largest[n], __shfl_xor_sync(kFullWarp, largest[n], 2));
      const float ratio = h_scale * inverse_power_of_two(largest[n]);
      relative[n] = pack_fp16(ratio, ratio);
    }
    multiply_weight_tile(
        weights, weight_tile, acc,
        [&](int n, int i, uint32_t& b0, uint32_t& b1) {
          const uint4& h = prefetched.h[n].h[i / 2];
          b0 = mul_f16x2(i % 2 ? h.z : h.x, relative[n]);
          b1 = mul_f16x2(i % 2 ? h.w : h.y, relative[n]);
        },
        [&](int n) {
          const float even = k_scale * __shfl_sync(kFullWarp, largest[n], 8 * t);
          const float odd = k_scale * __shfl_sync(kFullWarp, largest[n], 8 * t + 4);
          return make_float4(even, odd, even, odd);
        });
#pragma unroll
    for (int n = 0; n < kNTiles; n++) prefetched.h[n] = next_h[n];
  }
  if (next_ready) prefetched.load_first(args, next, first_k, kNTiles);
}

// ---- epilogue ----

// For all threads: sets the slabs of this CTA to zero, which they are after the next barrier. It is called before
// routing, which takes long enough for the stores, and after pdl_wait(), as the launch before reads these slabs.
__device__ __forceinline__ void zero_slabs(const FusedArgs& args, const TileScheduler& scheduler) {
  for (int local_tile = 0; local_tile < scheduler.num_local_tiles(); local_tile++) {
    float4* slab = reinterpret_cast<float4*>(args.slab(local_tile, scheduler.cta, scheduler.ctas));
#pragma unroll 1
    for (int i = threadIdx.x; i < args.num_tokens * Config::kColumnTile / 4; i += Config::kThreads)
      __stcg(slab + i, make_float4(0, 0, 0, 0));
  }
}

// For all threads: writes tokens first to end - 1 of a column tile to the output, as the sum of num_slabs slabs, which
// are kMostSlabs at most. With kShortTiles the loads of all slabs are in flight together, because one after the other
// they would take as long as a tile.
template <int kMostSlabs, class Slab>
__device__ __forceinline__ void store_output(const FusedArgs& args, int column_tile, int first, int end, int num_slabs,
                                             Slab slab) {
  constexpr int kOctets = Config::kColumnTile / 8;
#pragma unroll 1
  for (int i = first * kOctets + threadIdx.x; i < end * kOctets; i += Config::kThreads) {
    float4 u = make_float4(0, 0, 0, 0), v = u;
    if constexpr (Config::kShortTiles && kMostSlabs > 1) {
      float4 x[kMostSlabs], y[kMostSlabs];
#pragma unroll
      for (int p = 0; p < kMostSlabs; p++) {
        const float4* from = reinterpret_cast<const float4*>(slab(p)) + 2 * i;
        x[p] = p < num_slabs ? __ldcg(from) : make_float4(0, 0, 0, 0);
        y[p] = p < num_slabs ? __ldcg(from + 1) : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int p = 0; p < kMostSlabs; p++) {
        u.x += x[p].x, u.y += x[p].y, u.z += x[p].z, u.w += x[p].w;
        v.x += y[p].x, v.y += y[p].y, v.z += y[p].z, v.w += y[p].w;
      }
    } else {
#pragma unroll 1
      for (int p = 0; p < num_slabs; p++) {
        const float4* from = reinterpret_cast<const float4*>(slab(p)) + 2 * i;
        const float4 x = __ldcg(from), y = __ldcg(from + 1);
        u.x += x.x, u.y += x.y, u.z += x.z, u.w += x.w;
        v.x += y.x, v.y += y.y, v.z += y.z, v.w += y.w;
      }
    }
    *reinterpret_cast<uint4*>(args.output + (size_t)(i / kOctets) * kHidden + column_tile * Config::kColumnTile +
                              i % kOctets * 8) =
        make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w), pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  }
}

// ---- tiles ----

// Computes one m_block of a column tile and adds it to the slab. The other arguments: see gemm2_mainloop.
template <int kNTiles>
__device__ __forceinline__ void gemm2_combine_tile(Smem& s, const FusedArgs& args, WeightPipeline& weights,
                                                   const MBlock& m_block, const MBlock& next, bool next_ready,
                                                   float w_scale, const float* scales, const float* next_scales,
                                                   PrefetchedH& prefetched, float* slab) {
  const int warp = weights.warp, g = weights.lane / 4, t = weights.lane % 4;
  // Warps 0 to 3, or all, add to columns 16 warp + g and the eighth after it, of rows 2 t + p, p = 0 and 1, of each 8.
  const auto exists = [&](int n, int p) {
    return warp < Config::kMTiles * Config::kColumnHalves && Config::kMmaN * n + 2 * t + p < m_block.rows;
  };
  const auto sums = [&](int n, int p) {
    return slab + s.token[m_block.first_row + Config::kMmaN * n + 2 * t + p] * Config::kColumnTile +
           Config::kMmaM * warp + g;
  };
  float before[kNTiles][2][2] = {};  // read here, as it takes as long as a K block
#pragma unroll
  for (int n = 0; n < kNTiles; n++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      if (Config::kShortTiles || !exists(n, p)) continue;
      const float* sum = sums(n, p);
      before[n][p][0] = ld_global_cg_f32(sum), before[n][p][1] = ld_global_cg_f32(sum + 8);
    }
  }
  float acc[kNTiles][Config::kMTiles][4] = {};
  gemm2_mainloop<kNTiles>(args, weights, m_block, next, next_ready, w_scale, scales, next_scales, prefetched, acc);
  const auto add = [&](int n, int p, float first, float eighth) {
    if constexpr (Config::kShortTiles) atomicAdd(sums(n, p), first), atomicAdd(sums(n, p) + 8, eighth);
    else __stcg(sums(n, p), before[n][p][0] + first), __stcg(sums(n, p) + 8, before[n][p][1] + eighth);
  };
#pragma unroll
  for (int n = 0; n < kNTiles; n++) {
    if (Config::kMmaN * n >= m_block.rows) break;
    const float4 added = sum_over_warps<Config::kGemm2Warps>(s, acc[n], warp, weights.lane);
    if (exists(n, 0)) add(n, 0, added.x, added.z);
    if (exists(n, 1)) add(n, 1, added.y, added.w);
  }
  if constexpr (!Config::kShortTiles) __syncwarp();  // in the next m_block a token has other lanes
}

// Computes all m_blocks of all of this CTA's column tiles, and writes the output.
__device__ __forceinline__ void gemm2_combine(Smem& s, const FusedArgs& args, WeightPipeline& weights) {
  const TileScheduler& scheduler = s.scheduler;
  const int first_k = gemm2_warp(weights.warp);
  const auto load_weight_scale = [&](PrefetchedH& prefetched, int m, int local_tile) {
    prefetched.load_weight_scale(args, s.m_blocks[m].expert, scheduler.column_tile(local_tile),
                                 Config::kShortTiles ? first_k : first_k + Config::kGemm2Warps * weights.lane);
  };
  PrefetchedH prefetched;
  int ready = 0, m = 0, local_tile = -1;  // h of m_blocks below `ready` is complete
  bool more = scheduler.next_gemm2(m, local_tile), loaded = false;
  if (more) load_weight_scale(prefetched, m, local_tile);
#pragma unroll 1
  while (more) {
    const MBlock m_block = s.m_blocks[m];
    float* slab = args.slab(local_tile, scheduler.cta, scheduler.ctas);
    const float w_scale = prefetched.w_scale;
    const float* scales =
        Config::kShortTiles ? args.w2_scales(m_block.expert, scheduler.column_tile(local_tile)) : nullptr;
    if (m >= ready)
      ready = wait_for_h<false>(args.scratch->n_blocks_stored, Config::kNumNBlocks, m, scheduler.num_m_blocks);
    if (!loaded) prefetched.load_first(args, m_block, first_k, 0);
    more = scheduler.next_gemm2(m, local_tile);
    if (!Config::kShortTiles && more) load_weight_scale(prefetched, m, local_tile);
    loaded = more && m < ready;
    const MBlock next = s.m_blocks[more ? m : 0];
    const float* next_scales =
        Config::kShortTiles ? args.w2_scales(next.expert, scheduler.column_tile(local_tile)) : nullptr;
    const auto multiply = [&](auto n_tiles) {
      gemm2_combine_tile<n_tiles>(s, args, weights, m_block, next, loaded, w_scale, scales, next_scales, prefetched,
                                  slab);
    };
    if (m_block.rows <= Config::kMmaN) multiply(std::integral_constant<int, 1>());
    else multiply(std::integral_constant<int, 2>());
  }

  __syncthreads();  // sums are stored
  for (int i = 0; i < scheduler.own_tiles; i++)
    store_output<1>(args, scheduler.column_tile(i), 0, args.num_tokens, 1,
                    [&](int) { return args.slab(i, scheduler.cta, scheduler.ctas); });

  // A shared column tile: each of its CTAs has a share of the tokens, for which it adds the slabs of all these CTAs.
  if (scheduler.shared_tile < 0) return;
  const int rank = scheduler.sharing_rank, sharing_ctas = scheduler.sharing_ctas;
  if (sharing_ctas > 1) {
    if (threadIdx.x == 0) {
      unsigned* slabs_stored = &args.scratch->slabs_stored[scheduler.shared_tile];
      counter_arrive(slabs_stored);
      counter_wait(slabs_stored, sharing_ctas);
    }
    __syncthreads();
  }
  store_output<Config::kMaxSharingCtas>(
      args, scheduler.shared_tile, args.num_tokens * rank / sharing_ctas, args.num_tokens * (rank + 1) / sharing_ctas,
      sharing_ctas, [&](int p) {
        return args.slab(scheduler.own_tiles, scheduler.first_sharing_cta + p * scheduler.sharing_stride,
                         scheduler.ctas);
      });
}

}  // namespace mma_fused
