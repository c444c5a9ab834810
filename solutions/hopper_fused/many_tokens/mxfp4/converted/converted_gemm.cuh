// converted_gemm: what both grouped GEMMs share that multiply MXFP4 weights as E4M3 in shared memory: threads, shared
// memory, and what consumers do with weight rows' references.
#pragma once
#include <cstdint>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "common/cuda/ptx/registers.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_gemm.cuh"
#include "hopper_fused/many_tokens/mxfp4/mxfp4_values.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/unusual.cuh"
#include "hopper_fused/many_tokens/normal_mainloop.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// ---- threads ----

constexpr int kConverterThreads = kWarpgroupThreads;  // the warpgroup behind the producers
constexpr int kConverterWarps = kConverterThreads / kWarp, kFirstConverterWarp = kConsumerWarps + kWarpgroupWarps;
constexpr int kConvertedGemmThreads = Grouped::kThreads + kConverterThreads;
constexpr int kConvertedProducerRegs = 40, kConverterRegs = 56, kConvertedConsumerRegs = 208;
static_assert(kConvertedProducerRegs * kProducerThreads + kConverterRegs * kConverterThreads +
                      kConvertedConsumerRegs * kConsumerThreads <=
                  kRegistersPerSm / kConvertedGemmThreads / 8 * 8 * kConvertedGemmThreads,
              "one CTA per SM");

// ---- shared memory ----

// kParts: of A, as in GemmSmem. kHParts: of h as gemm1's result; gemm2 has bf16 or fp16, as long as two.
template <int kParts, int kDParts, int kNumKBlocks>
struct ConvertedSmem {
  static constexpr int kStages = kParts == 1 ? 3 : 2;
  static constexpr int kPackedStages = kParts == 1 && kDParts == 2 ? 3 : 4;  // as many as fit
  // K blocks whose packed weights are asked for before x or h of the first of them is.
  static constexpr int kAhead = kPackedStages - 1 < kNumKBlocks ? kPackedStages - 1 : kNumKBlocks;
  // A tile's are written when all of its first stage are free, that is when the K block kStages before it has been
  // released, and read behind its last K block.
  static constexpr int kReferences = kNumKBlocks >= kStages ? 2 : kStages + 1;
  using Pipeline = PipelineState<kStages>;
  using PackedPipeline = PipelineState<kPackedStages>;

  alignas(1024) uint8_t w[kStages][Grouped::kWTileBytes];  // E4M3, as in GemmSmem, as are a, d and a_scale
  uint8_t a[kStages][kParts][Grouped::kATileBytes];
  uint8_t d[2][kDParts * kMmaM * kBlockK];
  uint8_t packed[kPackedStages][kPackedTileBytes];  // rows of 64 bytes, in the 64-byte swizzle
  float a_scale[kStages][Grouped::kBlockM];
  uint8_t reference[kReferences][Grouped::kBlockN];  // the lowest exponent of each weight row's window
  Magnitudes magnitudes[kExponents];
  // mbarriers, see converted_gemm1.cu and converted_gemm2.cu
  Barrier packed_full[kPackedStages], packed_empty[kPackedStages];
  Barrier full[kStages], empty[kStages];
  Barrier tile_full[Grouped::kSchedulerStages];
  int tile_entry[Grouped::kSchedulerStages][2];
};

// The prologue of both GEMMs.
template <class Smem>
__device__ __forceinline__ Smem& init_converted_gemm(int full_arrivals) {
  extern __shared__ __align__(1024) uint8_t gemm_smem[];
  Smem& smem = *reinterpret_cast<Smem*>(gemm_smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Smem::kPackedStages; i++) {
      smem.packed_full[i].init(1);
      smem.packed_empty[i].init(kConverterWarps);
    }
  }
  write_magnitudes<Smem>();
  return init_gemm<Smem>(full_arrivals + kConverterWarps);
}

// ---- consumers ----

// The main loop of a swap-AB tile, as swap_ab_mainloop, but both m64 are multiplied at once, and the loop is never
// unrolled: where it was, with three K blocks, ptxas 13.0 took the sums of both m64, which are scaled alike, for equal,
// and left out half of the products. observe(a): is called with the scales of the thread's rows of A.
template <int N, int kParts, int kNumKBlocks, bool kFence, class Smem, class Observe>
__device__ __forceinline__ void converted_swap_ab(Smem& smem, typename Smem::Pipeline& pipe, float (&sum)[2][N / 2],
                                                  int warpgroup, Observe observe) {
  float accum[2][N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[m][i] = 0.0f;
#pragma unroll 1
  for (int k = 0; k < kNumKBlocks; k++, pipe.advance()) {
    const int stage = pipe.stage;
    smem.full[stage].wait(pipe.phase);
    if constexpr (kFence) fence_proxy_async_shared();
    warpgroup_arrive();
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
      for (int part = 0; part < kParts; part++)  // the parts have one scale, hence one accumulator
        mma_k_block<N>(accum[m], make_smem_desc(smem.w[stage] + (2 * warpgroup + m) * kMmaM * kBlockK, kAtomBytes),
                       make_smem_desc(smem.a[stage][part], kAtomBytes), part == 0);
      warpgroup_commit_batch();
    }
    float2 a[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      a[j] = *reinterpret_cast<const float2*>(smem.a_scale[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
    observe(a);
    const auto add = [&](int m) {
      warpgroup_fence_operand(accum[m]);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        sum[m][4 * j + 0] += accum[m][4 * j + 0] * a[j].x;
        sum[m][4 * j + 1] += accum[m][4 * j + 1] * a[j].y;
        sum[m][4 * j + 2] += accum[m][4 * j + 2] * a[j].x;
        sum[m][4 * j + 3] += accum[m][4 * j + 3] * a[j].y;
      }
    };
    warpgroup_wait<1>();
    add(0);
    warpgroup_wait<0>();
    cluster_consumer_release(smem, stage, a);
    add(1);
  }
}

// What a weight row's sums are to be multiplied with.
__device__ __forceinline__ float reference_value(int lowest_exponent) {
  return power_of_two(lowest_exponent + kExponentsBelow - kE8M0Bias);
}

// For a normal tile's sums.
__device__ __forceinline__ void scale_normal(float (&sum)[kNormalSums], const uint8_t* reference) {
#pragma unroll
  for (int j = 0; j < kNormalSums / 4; j++) {
    const uint16_t two = *reinterpret_cast<const uint16_t*>(reference + 8 * j + 2 * (threadIdx.x % kQuad));
    const float first = reference_value(two & 255), second = reference_value(two >> 8);
    sum[4 * j] *= first;
    sum[4 * j + 1] *= second;
    sum[4 * j + 2] *= first;
    sum[4 * j + 3] *= second;
  }
}

// For a swap-AB tile's.
template <int N>
__device__ __forceinline__ void scale_swap_ab(float (&sum)[2][N / 2], const uint8_t* reference, int warpgroup) {
  const int warp = threadIdx.x / kWarp % kWarpgroupWarps;
  const int row = warpgroup * 2 * kMmaM + warp * kWarpRows + threadIdx.x % kWarp / kQuad;
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float value = reference_value(reference[row + m * kMmaM + 8 * r]);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        sum[m][4 * j + 2 * r] *= value;
        sum[m][4 * j + 2 * r + 1] *= value;
      }
    }
}

}  // namespace hopper_fused
