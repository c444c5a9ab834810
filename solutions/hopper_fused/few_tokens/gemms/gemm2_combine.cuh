// gemm2_combine: the consumers' gemm2. Y^T = W2 . h^T for this CTA's 64 output columns and the rows of all m_blocks,
// added up by token in fp32 in shared memory, in order of expert; then the output in bf16.
//
// No other CTA has these columns (unless kCtasPerColumnTile > 1), so there is no combine pass, and the order of the
// sums is the same in every run. It is also the order in which gemm1 completes h, on which load_activations waits.
//
//   mainloop   the warpgroups split K: within a stage up to kGemm2SplitKRows rows, above stage by stage. Of short K
//              and few rows each has every other m_block alone
//   epilogue   warpgroup 0, then warpgroup 1 adds its part to the sums, while the other one computes
#pragma once
#include <type_traits>

#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/gemms/consumer_pipeline.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/few_tokens/mxfp4/mxfp4_mainloops.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "hopper_fused/few_tokens/all_reduce/all_reduce.cuh"

namespace hopper_fused {

// ---- mainloop ----

// acc += raw times the scales of one n_block of h and of the weight block. kPending: the K block's n_blocks after it,
// whose wgmmas may still be in flight. The scales of h are read first, while the wgmmas run. Returns their bits.
template <int N, int kPending>
__device__ __forceinline__ uint32_t promote_n_block(
    float (&acc)[N / 2], float (&raw)[N / 2], const float* scales, float w_scale) {
  constexpr int kNBlock = Config::kNBlocksPerKBlock - 1 - kPending;
  const float* pair = scales + Config::kNBlocksPerKBlock * 2 * (threadIdx.x % kQuad) + kNBlock;
  float2 h[N / 8];
#pragma unroll
  for (int j = 0; j < N / 8; j++)
    h[j] = make_float2(pair[Config::kNBlocksPerKBlock * kAtomRows * j],
                       pair[Config::kNBlocksPerKBlock * kAtomRows * j + Config::kNBlocksPerKBlock]);
  warpgroup_wait<kPending>();
  warpgroup_fence_operand(raw);
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const float s0 = h[j].x * w_scale, s1 = h[j].y * w_scale;
    acc[4 * j + 0] += raw[4 * j + 0] * s0;
    acc[4 * j + 1] += raw[4 * j + 1] * s1;
    acc[4 * j + 2] += raw[4 * j + 2] * s0;
    acc[4 * j + 3] += raw[4 * j + 3] * s1;
  }
  return read_bits(h);
}

// One K block of W2 . (hi + lo)^T. hi and lo have the same scale, so they share an accumulator. The n_blocks have their
// own scales, so each has an accumulator, which is promoted while the next n_blocks' wgmmas run. Returns the bits of
// what was read of the stage.
template <int N>
__device__ __forceinline__ uint32_t gemm2_k_block(
    float (&acc)[N / 2], const uint8_t* w, const uint8_t* h, const float* scales, float w_scale) {
  static_assert(Config::kNBlocksPerKBlock == 4 && Config::kNBlockColumns == kMmaK,
                "an n_block of h is one wgmma's K; the calls below are four");
  float raw[Config::kNBlocksPerKBlock][N / 2];
  const uint64_t desc_a = make_smem_desc(w, kAtomBytes);
  const uint64_t desc_hi = make_smem_desc(h, 2 * kAtomBytes), desc_lo = desc_hi + (kAtomBytes >> 4);
  warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < Config::kNBlocksPerKBlock; i++) {
    Wgmma<N>::mma(raw[i], desc_a + kDescMmaK * i, desc_hi + kDescMmaK * i, 0);
    Wgmma<N>::mma(raw[i], desc_a + kDescMmaK * i, desc_lo + kDescMmaK * i, 1);
    warpgroup_commit_batch();
  }
  uint32_t read = promote_n_block<N, 3>(acc, raw[0], scales, w_scale);
  read |= promote_n_block<N, 2>(acc, raw[1], scales, w_scale);
  read |= promote_n_block<N, 1>(acc, raw[2], scales, w_scale);
  return read | promote_n_block<N, 0>(acc, raw[3], scales, w_scale);
}

// Sums over this warpgroup's half of the K blocks. w_scales: in lane k that of K block k.
template <int N>
__device__ __forceinline__ void gemm2_mainloop(FusedSmem& s, PipelineState<Config::kStages>& pipe, float (&acc)[N / 2],
                                               int warpgroup, int atoms, float w_scales) {
  constexpr bool kSplitK = N <= Config::kGemm2SplitKRows;
  constexpr int kStageK = kSplitK ? 2 : 1;  // K blocks of a stage
  const int my_k = kSplitK ? warpgroup : 0;
  for (int i = 0; i < (kSplitK ? Config::kSplitKSteps2 : Config::kKBlocks2); i++, pipe.advance()) {
    const int stage = pipe.stage;
    const bool in_stage = !Config::kHalfStage2 || kStageK * i + my_k < Config::kKBlocks2;
    if (kSplitK ? in_stage : i % 2 == warpgroup) {
      const float w_scale = __shfl_sync(kFullWarp, w_scales, kStageK * i + my_k);
      s.full[stage].wait(pipe.phase);
      const uint32_t read =
          gemm2_k_block<N>(acc, s.stage(stage) + my_k * Config::kWeightTileBytes,
                           s.stage(stage) + kStageK * Config::kWeightTileBytes + my_k * atoms * 2 * kAtomBytes,
                           s.scales[stage] + my_k * atoms * Config::kNBlocksPerKBlock * kAtomRows, w_scale);
      consumer_release(s, stage, read);
    } else {
      s.full[stage].wait(pipe.phase);
      consumer_release(s, stage);
    }
  }
}

// The same over all K blocks, for a warpgroup that has an m_block alone.
template <int N>
__device__ __forceinline__ void gemm2_mainloop_alone(FusedSmem& s, PipelineState<Config::kStages>& pipe,
                                                     float (&acc)[N / 2], int atoms, float w_scales) {
  for (int i = 0; i < Config::kSplitKSteps2; i++, pipe.advance()) {
    const int stage = pipe.stage;
    s.full[stage].wait(pipe.phase);
    uint32_t read = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (Config::kHalfStage2 && 2 * i + k == Config::kKBlocks2) break;
      read |= gemm2_k_block<N>(acc, s.stage(stage) + k * Config::kWeightTileBytes,
                               s.stage(stage) + 2 * Config::kWeightTileBytes + k * atoms * 2 * kAtomBytes,
                               s.scales[stage] + k * atoms * Config::kNBlocksPerKBlock * kAtomRows,
                               __shfl_sync(kFullWarp, w_scales, 2 * i + k));
    }
    consumer_release(s, stage, read);
  }
}

// ---- epilogue ----

// An m_block's rows of y: warpgroup 0 hands its half of the sums to warpgroup 1, which adds its own.
template <int N>
__device__ __forceinline__ void store_rows(
    FusedSmem& s, const FusedArgs& args, const MBlock& m_block, const float (&acc)[N / 2], int warpgroup, int nth) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int column = kWarpRows * warp + lane / kQuad, column_tile = blockIdx.x % Config::kNumColumnTiles;
  float* half = s.sums(Config::kMBlockRows) + column;
  float* y = args.y + (size_t)m_block.first_row * kHidden + column_tile * Config::kColumnTile + column;
  if (warpgroup == 1) s.sums_added[0].wait(nth % 2);
  else if (nth > 0) s.sums_added[1].wait((nth - 1) % 2);
  uint32_t read = 0;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % kQuad) + p;
      if (r >= m_block.rows) continue;
      float* first = half + r * Config::kSumPitch;
      if (warpgroup == 0) {
        first[0] = acc[4 * j + p];
        first[8] = acc[4 * j + 2 + p];
      } else {
        const float a = first[0], b = first[8];
        read |= __float_as_uint(a) | __float_as_uint(b);
        __stcs(y + (size_t)r * kHidden, a + acc[4 * j + p]);
        __stcs(y + (size_t)r * kHidden + 8, b + acc[4 * j + 2 + p]);
      }
    }
  }
  s.sums_added[warpgroup].release(read);
}

// nth: of the m_block among those of this CTA; with kMBlocksAlone the number of times that a warpgroup has added to the
// sums before it. The warpgroups take turns, warpgroup 0 the even ones: an m_block takes the next turn if a warpgroup
// has it alone, else the next two.
template <int N>
__device__ __forceinline__ void gemm2_m_block(FusedSmem& s, const FusedArgs& args, PipelineState<Config::kStages>& pipe,
                                              const MBlock& m_block, W2ScaleReader& w2_scales, float w_scales,
                                              int warpgroup, int nth) {
  constexpr bool kAlone = Config::kMBlocksAlone && N <= Config::kGemm2SplitKRows;
  if (kAlone && nth % 2 != warpgroup) return skip_stages(s, pipe, Config::kSplitKSteps2);
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
  if constexpr (kMxfp4Weights) gemm2_mainloop_mxfp4<N>(s, m_block, pipe, acc, warpgroup, w2_scales);
  else if constexpr (kAlone) gemm2_mainloop_alone<N>(s, pipe, acc, m_block.atoms(), w_scales);
  else gemm2_mainloop<N>(s, pipe, acc, warpgroup, m_block.atoms(), w_scales);
  if (kMxfp4Weights && args.y) return store_rows<N>(s, args, m_block, acc, warpgroup, nth);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kWarpgroupWarps;
  float* column = s.sums(args.num_tokens) + kWarpRows * warp + lane / kQuad;
  // warpgroup 0, 1, 0, 1, ...: one at a time adds to the sums
  if constexpr (Config::kMBlocksAlone) {
    const int turn = nth % 2 == 0 ? nth + warpgroup : nth + 1 - warpgroup;
    if (turn > 0) s.sums_added[1 - warpgroup].wait((turn - 1) / 2 % 2);
  } else if (warpgroup == 1) {
    s.sums_added[0].wait(nth % 2);
  } else if (nth > 0) {
    s.sums_added[1].wait((nth - 1) % 2);
  }
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const int r = 8 * j + 2 * (lane % kQuad) + p;
      if (r >= m_block.rows) continue;
      float* sum = column + s.token[m_block.first_row + r] * Config::kSumPitch;
      sum[0] += acc[4 * j + p];
      sum[8] += acc[4 * j + 2 + p];
    }
  }
  s.sums_added[warpgroup].arrive();
}

__device__ __forceinline__ uint4 octet_in_bf16(float4 u, float4 v) {
  return make_uint4(pack_bf16(u.x, u.y), pack_bf16(u.z, u.w), pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
}
__device__ __forceinline__ void store_bf16(uint16_t* to, float4 u, float4 v) {
  *reinterpret_cast<uint4*>(to) = octet_in_bf16(u, v);
}

// u, v: 8 columns of a token, added up over the CTAs that share its column tile.
__device__ __forceinline__ void sum_partials(FusedScratch& scratch, int token, int column, float4& u, float4& v) {
  u = v = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int p = 0; p < Config::kCtasPerColumnTile; p++) {
    const float4* from = reinterpret_cast<const float4*>(scratch.partial(p, token) + column);
    const float4 x = __ldcg(from), y = __ldcg(from + 1);
    u.x += x.x, u.y += x.y, u.z += x.z, u.w += x.w;
    v.x += y.x, v.y += y.y, v.z += y.z, v.w += y.w;
  }
}

// Where several CTAs share a column tile: each stores its sums; when all have, each adds up all of them for its share
// of the tokens, in order of CTA, and stores the output. It cannot deadlock: a CTA stores and arrives before it waits.
// rank: of this CTA among them.
template <class Args>
__device__ __forceinline__ void reduce_column_tile(const Args& args, unsigned epoch, const float* sums,
                                                   int column_tile, int rank) {
  const int thread = threadIdx.x % kConsumerThreads;
  constexpr int kVectors = Config::kColumnTile / 4;
  FusedScratch& scratch = *args.scratch;
  for (int i = thread; i < args.num_tokens * kVectors; i += kConsumerThreads)
    __stcg(reinterpret_cast<float4*>(scratch.partial(rank, i / kVectors) + column_tile * Config::kColumnTile +
                                     i % kVectors * 4),
           *reinterpret_cast<const float4*>(sums + i / kVectors * Config::kSumPitch + i % kVectors * 4));
  PartialsBarrier::arrive();
  AllPartialsBarrier::sync();  // after exchange_partials
  const int first = args.num_tokens * rank / Config::kCtasPerColumnTile;
  const int end = args.num_tokens * (rank + 1) / Config::kCtasPerColumnTile;
  float4 u, v;
  if constexpr (std::is_same_v<Args, ReducedArgs>) {
    all_reduce(args, args.peers, epoch, first, end, column_tile, [&](int token, int column) {
      sum_partials(scratch, token, column, u, v);
      return octet_in_bf16(u, v);
    });
  } else {
    for (int i = first * kOctets + thread; i < end * kOctets; i += kConsumerThreads) {
      const int t = i / kOctets, column = column_tile * Config::kColumnTile + i % kOctets * 8;
      sum_partials(scratch, t, column, u, v);
      store_bf16(args.output + (size_t)t * kHidden + column, u, v);
    }
  }
}

// ---- column tile ----

// epoch: of the ranks' exchange, with ReducedArgs.
template <class Args>
__device__ __forceinline__ void gemm2_combine(FusedSmem& s, const Args& args, PipelineState<Config::kStages>& pipe,
                                              int warpgroup, unsigned epoch) {
  const int thread = threadIdx.x % kConsumerThreads;
  constexpr int kVectors = Config::kColumnTile / 4;
  float* sums = s.sums(args.num_tokens);
  const int column_tile = blockIdx.x % Config::kNumColumnTiles, rank = blockIdx.x / Config::kNumColumnTiles;
  // One weight scale per K block and lane. An m_block's are requested while the one before is computed.
  const auto scales_of = [&](int n) {
    if (kMxfp4Weights || n >= s.num_m_blocks) return 0.0f;  // those of MXFP4 are w2_scales'
    const int block = s.m_block[n].expert * (kHidden / kBlockK) + column_tile * Config::kColumnTile / kBlockK;
    return args.w2_scale[block * kNumKBlocks2 + thread % kWarp % kNumKBlocks2];
  };
  float next_scales = scales_of(rank);
  W2ScaleReader w2_scales;
  if (kMxfp4Weights && rank < s.num_m_blocks) w2_scales.begin(scale_rows_of(args, s.m_block[rank], warpgroup));
  ConsumersBarrier::sync();  // gemm1 is over: the sums may overwrite Gemm1Smem
  const int sum_tokens = kMxfp4Weights && args.y ? 0 : args.num_tokens;
  for (int i = thread; i < sum_tokens * kVectors; i += kConsumerThreads)
    *reinterpret_cast<float4*>(sums + i / kVectors * Config::kSumPitch + i % kVectors * 4) = make_float4(0, 0, 0, 0);
  ConsumersBarrier::sync();

  for (int n = rank, i = 0; n < s.num_m_blocks; n += Config::kCtasPerColumnTile) {
    const MBlock m_block = s.m_block[n];
    const float w_scales = next_scales;
    next_scales = scales_of(n + Config::kCtasPerColumnTile);
    if constexpr (kMxfp4Weights) {
      const int next = min(n + Config::kCtasPerColumnTile, s.num_m_blocks - 1);
      w2_scales.next_tile(scale_rows_of(args, s.m_block[next], warpgroup));
    }
    if (m_block.rows <= 8) gemm2_m_block<8>(s, args, pipe, m_block, w2_scales, w_scales, warpgroup, i);
    else if (m_block.rows <= 16) gemm2_m_block<16>(s, args, pipe, m_block, w2_scales, w_scales, warpgroup, i);
    else if (m_block.rows <= 32) gemm2_m_block<32>(s, args, pipe, m_block, w2_scales, w_scales, warpgroup, i);
    else if constexpr (Config::kMBlockRows == 64)
      gemm2_m_block<64>(s, args, pipe, m_block, w2_scales, w_scales, warpgroup, i);
    i += Config::kMBlocksAlone && !m_block.split_k() ? 2 : 1;
  }
  if (kMxfp4Weights && args.y) return;
  ConsumersBarrier::sync();
  if constexpr (Config::kCtasPerColumnTile > 1) {
    reduce_column_tile(args, epoch, sums, column_tile, rank);
  } else if constexpr (std::is_same_v<Args, ReducedArgs>) {
    all_reduce(args, args.peers, epoch, 0, args.num_tokens, column_tile, [&](int token, int column) {
      const float4* sum =
          reinterpret_cast<const float4*>(sums + token * Config::kSumPitch + column % Config::kColumnTile);
      return octet_in_bf16(sum[0], sum[1]);
    });
  } else {
    for (int i = thread; i < args.num_tokens * kOctets; i += kConsumerThreads) {
      const float4* sum = reinterpret_cast<const float4*>(sums + i / kOctets * Config::kSumPitch + i % kOctets * 8);
      store_bf16(args.output + (size_t)(i / kOctets) * kHidden + column_tile * Config::kColumnTile + i % kOctets * 8,
                 sum[0], sum[1]);
    }
  }
}

}  // namespace hopper_fused
