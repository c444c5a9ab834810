// mxfp4_mainloops: gemm1's and gemm2's sums over K where the weights are MXFP4.
//
// A stage is a step of two K blocks. Of each K block the four groups' sums are kept apart, and added to fp32 sums times
// their scales. What a warp does with a step, in order of time (two K blocks in flight, as with up to 16 rows):
//
//   wgmmas in flight   the warp
//                      scales of weights from the quad's lanes (ScaleReader), those of rows from the stage
//   first K block      converts the second one's weights
//   both               scales in fp32; waits for the next stage, reads its weights
//   second             adds the first one's sums; converts the next step's first K block
//                      adds the second one's sums, releases the stage
//
// Nothing is in flight when a step ends: ptxas takes wgmmas one by one where they are across a loop's end. With 32 rows
// the sums of two K blocks have no room, and the first one's are added before the second one's wgmmas are issued.
#pragma once
#include <type_traits>

#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/gemms/consumer_pipeline.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/few_tokens/mxfp4/mxfp4_weights.cuh"
#include "hopper_fused/few_tokens/gemms/n_block_scheduler.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

constexpr int kTwoInFlightRows = 16;  // up to here a warpgroup has both K blocks of a step in flight

// ---- wgmmas of a K block ----

// raw: of each group of a K block, times x, whose descriptor is `desc`; with kLow its second part, which comes an atom
// after the first.
template <int N, bool kLow>
__device__ __forceinline__ void issue_k_block(float (&raw)[kGroups][N / 2], Converted& a, uint64_t desc) {
  fence_operands<N>(a, raw);
  warpgroup_arrive();
#pragma unroll
  for (int j = 0; j < kGroups; j++) {
    WgmmaRegisters<N>::mma(raw[j], a[j], desc + kDescMmaK * j, 0);
    if (kLow) WgmmaRegisters<N>::mma(raw[j], a[j], desc + kDescMmaK * j + (kAtomBytes >> 4), 1);
  }
  warpgroup_commit_batch();
}
// Waits until at most `kPending` K blocks behind this one are in flight.
template <int N, int kPending>
__device__ __forceinline__ void wait_k_block(float (&raw)[kGroups][N / 2]) {
  warpgroup_wait<kPending>();
#pragma unroll
  for (int j = 0; j < kGroups; j++) warpgroup_fence_operand(raw[j]);
}

// ---- scales of rows ----

// Of a K block, for this lane's columns of the sums: one for each row of x.
template <int N>
struct XScales {
  static constexpr int kRowBytes = sizeof(float);
  float2 x[N / 8];

  // at: of the first row of this lane
  __device__ __forceinline__ void load(uint32_t at) {
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(x[j].x), "=f"(x[j].y)
                   : "r"(at + j * kAtomRows * kRowBytes)
                   : "memory");
  }
  __device__ __forceinline__ uint32_t bits() const { return read_bits(x); }
  // scale: of this lane's two rows of weights
  __device__ __forceinline__ void add_to(
      float (&acc)[N / 2], const float (&raw)[kGroups][N / 2], const float (&scale)[2][kGroups]) const {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float(&w)[kGroups] = scale[i / 2 % 2];
      float sum = raw[0][i] * w[0];
#pragma unroll
      for (int j = 1; j < kGroups; j++) sum = fmaf(raw[j][i], w[j], sum);
      acc[i] = fmaf(sum, i % 2 ? x[i / 4].y : x[i / 4].x, acc[i]);
    }
  }
};

// The same of h: a row has one for each n_block, which is a group of weights.
template <int N>
struct HScales {
  static_assert(kGroups == Config::kNBlocksPerKBlock, "a group of weights is an n_block of h");
  static constexpr int kRowBytes = sizeof(float4);
  float4 h[N / 8][2];

  __device__ __forceinline__ void load(uint32_t at) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
      for (int p = 0; p < 2; p++)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(h[j][p].x), "=f"(h[j][p].y), "=f"(h[j][p].z), "=f"(h[j][p].w)
                     : "r"(at + (j * kAtomRows + p) * kRowBytes)
                     : "memory");
    }
  }
  __device__ __forceinline__ uint32_t bits() const {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < N / 8; j++) bits |= __float_as_uint(h[j][0].x) | __float_as_uint(h[j][1].x);
    return bits;
  }
  __device__ __forceinline__ void add_to(
      float (&acc)[N / 2], const float (&raw)[kGroups][N / 2], const float (&scale)[2][kGroups]) const {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float(&w)[kGroups] = scale[i / 2 % 2];
      const float4 row = h[i / 4][i % 2];
      acc[i] = fmaf(raw[0][i], w[0] * row.x, acc[i]);
      acc[i] = fmaf(raw[1][i], w[1] * row.y, acc[i]);
      acc[i] = fmaf(raw[2][i], w[2] * row.z, acc[i]);
      acc[i] = fmaf(raw[3][i], w[3] * row.w, acc[i]);
    }
  }
};

// ---- main loop ----

// Where a warpgroup's parts of a step are in stage 0, and how far the second K block's are behind the first one's.
struct StepParts {
  uint32_t weights;        // shared address
  uint64_t rows;           // descriptor
  int rows_stride;         // in its units
  uint32_t scales;         // shared address of the scales of this lane's first row
  uint32_t scales_stride;  // bytes

  // first_*: those of the warpgroup's first K block. atoms: of rows. parts: of each row, hi and lo. scale_bytes: of a
  // row's scales.
  __device__ __forceinline__ StepParts(const uint8_t* first_weights, const uint8_t* first_rows,
                                       const float* first_scales, int atoms, int parts, int scale_bytes)
      : weights(smem_addr(first_weights)),
        rows(make_smem_desc(first_rows, parts * kAtomBytes)),
        rows_stride(atoms * parts * kAtomBytes >> 4),
        scales(smem_addr(first_scales) + 2 * (threadIdx.x % kQuad) * scale_bytes),
        scales_stride(atoms * kAtomRows * scale_bytes) {}
  // Descriptor of a K block. The units of a stage do not carry out of its low word.
  __device__ __forceinline__ uint64_t desc(int stage, int k_block) const {
    const uint32_t low = (uint32_t)rows + stage * (Config::kStageBytes >> 4) + k_block * rows_stride;
    return (rows >> 32 << 32) | low;
  }
};

// acc: sums over the steps of a tile. skip: passes over the other warpgroup's stage, where they take turns. Scales:
// XScales, or in gemm2 HScales.
template <int N, bool kLow, class Scales, class Reader, class Skip>
__device__ __forceinline__ void mainloop_mxfp4(FusedSmem& s, PipelineState<Config::kStages>& pipe, float (&acc)[N / 2],
                                               const StepParts& parts, const TileOffsets& offsets, Reader& reader,
                                               const Skip& skip) {
  constexpr bool kTwo = N <= kTwoInFlightRows;
  const uint32_t carry = sign_carry();
  const int steps = reader.rows.count;
  Packed packed[2];
  Converted a[2];
  float raw[kTwo ? 2 : 1][kGroups][N / 2];

  const auto load_weights = [&] {
    s.full[pipe.stage].wait(pipe.phase);
    const uint32_t tile = parts.weights + pipe.stage * Config::kStageBytes;
    load_packed(packed[0], tile, offsets, 0);
    load_packed(packed[1], tile, offsets, 1);
  };
  const auto take_step = [&](int i, auto last) {
    const int stage = pipe.stage;
    const uint32_t scales_at = parts.scales + stage * (Config::kStageScales * (int)sizeof(float));
    const ScalePairs pairs = reader.read(i);
    Scales row_scales[2];
    float scale[2][2][kGroups];
    row_scales[0].load(scales_at);
    if (kTwo) row_scales[1].load(scales_at + parts.scales_stride);
    issue_k_block<N, kLow>(raw[0], a[0], parts.desc(stage, 0));

    hold(packed[1]);
    convert(a[1], packed[1], carry);
    if constexpr (kTwo) {
      issue_k_block<N, kLow>(raw[1], a[1], parts.desc(stage, 1));
      scales_of(scale[0], pairs, 0);
    } else {
      scales_of(scale[0], pairs, 0);
      wait_k_block<N, 0>(raw[0]);
      row_scales[0].add_to(acc, raw[0], scale[0]);
      row_scales[1].load(scales_at + parts.scales_stride);
      issue_k_block<N, kLow>(raw[0], a[1], parts.desc(stage, 1));
    }
    scales_of(scale[1], pairs, 1);

    pipe.advance();
    if constexpr (!last.value) {
      skip();
      load_weights();
    }
    if constexpr (kTwo) {
      wait_k_block<N, 1>(raw[0]);
      row_scales[0].add_to(acc, raw[0], scale[0]);
    }
    if constexpr (!last.value) convert(a[0], packed[0], carry);

    wait_k_block<N, 0>(raw[kTwo]);
    row_scales[1].add_to(acc, raw[kTwo], scale[1]);
    consumer_release(s, stage, row_scales[0].bits() | row_scales[1].bits());
  };

  load_weights();
  convert(a[0], packed[0], carry);
  for (int i = 0; i < steps - 1; i++) take_step(i, std::false_type());
  take_step(steps - 1, std::true_type());
}

// ---- gemm1 ----

using W1ScaleReader = ScaleReader<kHidden / kGroupK>;

// Of this lane's rows, and the steps of this warpgroup.
__device__ __forceinline__ ScaleRows scale_rows_of(const FusedArgs& args, const Gemm1Tile& tile, int warpgroup) {
  constexpr int kRowBytes = kHidden / kGroupK;
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps, row = w13_row(threadIdx.x % kWarp / kQuad);
  const int my_n_block = tile.n_block + (tile.num_n_blocks == 2 ? warpgroup : 0);
  const bool padding = my_n_block >= kIntermediate / Config::kNBlockColumns;  // its weights are zeros
  const int w_row = (padding ? 0 : my_n_block) * Config::kNBlockColumns + 8 * warp + row;
  const uint8_t* first = args.w1_bytes() + ((size_t)tile.m_block.expert * 2 * kIntermediate + w_row) * kRowBytes;
  const bool split_k = tile.split_k();
  return {{first, first + (size_t)kIntermediate * kRowBytes}, split_k ? warpgroup : 0, split_k ? 2 : 1, tile.k_iters()};
}

// As gemm1_mainloop: sums over K for this warpgroup's weight tile of each stage.
template <int N>
__device__ __forceinline__ void gemm1_mainloop_mxfp4(FusedSmem& s, const Gemm1Tile& tile,
                                                     PipelineState<Config::kStages>& pipe, float (&acc)[N / 2],
                                                     int warpgroup, W1ScaleReader& reader) {
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps, row = w13_row(threadIdx.x % kWarp / kQuad);
  const int atoms = tile.m_block.atoms(), my_k_block = tile.split_k() ? warpgroup * Config::kStepBlocks : 0;
  const StepParts parts(s.stage(0) + warpgroup * Config::kWeightTileBytes,
                        s.stage(0) + Config::kStageWeightBytes + my_k_block * atoms * kAtomBytes,
                        s.scales[0] + my_k_block * atoms * kAtomRows, atoms, 1, XScales<N>::kRowBytes);
  mainloop_mxfp4<N, false, XScales<N>>(s, pipe, acc, parts, TileOffsets(warp, row), reader, [] {});
}

// ---- gemm2 ----

using W2ScaleReader = ScaleReader<kIntermediate / kGroupK>;

__device__ __forceinline__ ScaleRows scale_rows_of(const FusedArgs& args, const MBlock& m_block, int warpgroup) {
  constexpr int kRowBytes = kIntermediate / kGroupK;
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps, row = threadIdx.x % kWarp / kQuad;
  const int w_row = blockIdx.x % Config::kNumColumnTiles * Config::kColumnTile + kWarpRows * warp + row;
  const uint8_t* first = args.w2_bytes() + ((size_t)m_block.expert * kHidden + w_row) * kRowBytes;
  return {{first, first + kAtomRows * kRowBytes}, warpgroup, 2, Config::kKSteps2 / 2};
}

// As gemm2_mainloop: sums over this warpgroup's half of the steps.
template <int N>
__device__ __forceinline__ void gemm2_mainloop_mxfp4(FusedSmem& s, const MBlock& m_block,
                                                     PipelineState<Config::kStages>& pipe, float (&acc)[N / 2],
                                                     int warpgroup, W2ScaleReader& reader) {
  constexpr bool kSplitK = N <= Config::kGemm2SplitKRows;
  constexpr int kStageWeights = (kSplitK ? 2 : 1) * Config::kWeightTileBytes;
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps, row = threadIdx.x % kWarp / kQuad;
  const int atoms = m_block.atoms(), my_k = kSplitK ? warpgroup : 0, my_k_block = my_k * Config::kStepBlocks;
  const StepParts parts(s.stage(0) + my_k * Config::kWeightTileBytes,
                        s.stage(0) + kStageWeights + my_k_block * atoms * 2 * kAtomBytes,
                        s.scales[0] + my_k_block * atoms * kAtomRows * Config::kNBlocksPerKBlock, atoms, 2,
                        HScales<N>::kRowBytes);
  const auto skip = [&] {
    if (!kSplitK) skip_stages(s, pipe, 1);
  };
  if (warpgroup == 1) skip();
  mainloop_mxfp4<N, true, HScales<N>>(s, pipe, acc, parts, TileOffsets(warp, row), reader, skip);
  if (warpgroup == 0) skip();
}

}  // namespace hopper_fused
