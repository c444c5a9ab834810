// gather: the CTAs copy the rows of x to scratch, each its share, in order of expert and in the swizzled layout that
// wgmma reads. So one bulk copy loads a K block of an m_block.
#pragma once
#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/layer/weights.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// Prefetches all tokens to L2 before it is known which have rows here, so that gather_rows finds them there.
template <bool kBf16>
__device__ __forceinline__ void prefetch_tokens(const FusedArgs& args) {
  constexpr int kLine = 128;
  const int thread = blockIdx.x * Config::kThreads + threadIdx.x, threads = gridDim.x * Config::kThreads;
  const int lines = args.num_tokens * kNumKBlocks1 * (kBf16 ? 2 : 1);
  const int scale_lines = kBf16 ? 0 : (lines * 4 + kLine - 1) / kLine;
  for (int i = thread; i < lines; i += threads) prefetch_l2(args.x + i * kLine);
  if (thread < scale_lines) prefetch_l2(reinterpret_cast<const uint8_t*>(args.x_scale) + thread * kLine);
}

// For the consumer warps, one warp a row: copies this CTA's share of the rows and their scales, but not m_blocks that
// bypass the gather. Padding becomes zero. Arrives at RowsReadBarrier when this warp's first row is requested, not yet
// there: weights requested earlier would delay the rows. Only speed depends on it. kBf16: rows are in shared memory,
// and the caller has arrived.
template <bool kBf16>
__device__ __forceinline__ void gather_rows(FusedSmem& s, const FusedArgs& args) {
  constexpr int kVectors = Config::kPaddedHidden / 16 / kWarp;  // of 16 bytes, of a row, for each lane
  constexpr int kVectorsPerKBlock = kBlockK / 16;
  constexpr int kScalesPerLane = 2;
  static_assert(Config::kPaddedHidden % (16 * kWarp) == 0, "a row is whole vectors of each lane");
  static_assert(kNumKBlocks1 <= kScalesPerLane * kWarp, "a row's scales fit a warp");
  const int lane = threadIdx.x % kWarp;
  const auto exists = [&](int i) { return kHidden == Config::kPaddedHidden || kWarp * i + lane < kHidden / 16; };
  bool arrived = kBf16;
  for (int row = blockIdx.x + gridDim.x * (threadIdx.x / kWarp); row < s.num_rows;
       row += gridDim.x * kConsumerThreads / kWarp) {
    const MBlock m_block = s.m_block[s.m_block_of_atom[row / kAtomRows]];
    const int in_block = row - m_block.first_row;
    if (m_block.bypasses_gather(args.num_tokens)) continue;
    const int t = s.token[row];
    const auto* x = reinterpret_cast<const uint4*>(kBf16 ? s.quantised_row(t) : args.x + t * kHidden);
    const float* x_scale = kBf16 ? s.gemm1_smem().x_scale() : args.x_scale;
    uint4 v[kVectors];
    float scale[kScalesPerLane] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kVectors; i++)
      v[i] = t == kNoToken || !exists(i)
                 ? make_uint4(0, 0, 0, 0)
                 : x[kWarp * i + lane];
#pragma unroll
    for (int i = 0; i < kScalesPerLane; i++)
      if (t != kNoToken && kWarp * i + lane < kNumKBlocks1)
        scale[i] = x_scale[x_scale_index(kWarp * i + lane, t, args.num_tokens)];
    if (!arrived) RowsReadBarrier::arrive(), arrived = true;
    const int in_k_block =
        in_block / kAtomRows * kAtomBytes + swizzle_128b(in_block % kAtomRows, lane % kVectorsPerKBlock * 16);
#pragma unroll
    for (int i = 0; i < kVectors; i++) {
      const int k = kWarp / kVectorsPerKBlock * i + lane / kVectorsPerKBlock;
      uint8_t* to = args.scratch->x + m_block.x_offset(k);
      if constexpr (kMxfp4Weights) {  // of each 32 the even ones come first
        const int byte = lane % kVectorsPerKBlock / 2 * 32 + lane % 2 * 8;
        uint8_t* atom = to + in_block / kAtomRows * kAtomBytes;
        const uint2 even = {__byte_perm(v[i].x, v[i].y, 0x6420), __byte_perm(v[i].z, v[i].w, 0x6420)};
        const uint2 odd = {__byte_perm(v[i].x, v[i].y, 0x7531), __byte_perm(v[i].z, v[i].w, 0x7531)};
        *reinterpret_cast<uint2*>(atom + swizzle_128b(in_block % kAtomRows, byte)) = even;
        *reinterpret_cast<uint2*>(atom + swizzle_128b(in_block % kAtomRows, byte + 16)) = odd;
      } else {
        *reinterpret_cast<uint4*>(to + in_k_block) = v[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kScalesPerLane; i++) {
      const int k = kWarp * i + lane;
      if (k < Config::kKBlocks1)
        args.scratch->x_scale[m_block.x_scale_offset(k) + in_block] = scale[i] * Config::kWeightFactor;
    }
  }
  if (!arrived) RowsReadBarrier::arrive();
}

}  // namespace hopper_fused
