// launch_gemms: the GEMMs of layers with MXFP4 weights, for launch_layer.cu. Three sets of kernels:
//
//   order_tokens                       x in the order of K that all of them read
//   mxfp4_gemm1, mxfp4_gemm2           convert weights in the registers of the warps that multiply. They serve all scales
//   converted_gemm1, converted_gemm2   convert weights in shared memory, from kConvertedTokens tokens on. What they cannot
//                                      do mxfp4_gemm1 and mxfp4_gemm2 do, which are launched behind them: unusual.cuh
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/launch_layer.cuh"
#include "common/cuda/host/weight_maps.cuh"
#include "common/cuda/layer/weights.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/converted/unusual.cuh"
#include "hopper_fused/many_tokens/mxfp4/order_tokens.cuh"
#include "hopper_fused/regimes.cuh"

namespace hopper_fused {

// From so many tokens on weights are converted in shared memory, which is 64 rows per expert on average: measured.
constexpr int64_t kConvertedTokens = 64 * kNumExperts / kTopK;

class Mxfp4Gemms {
 public:
  static cudaError_t prepare() {
    for (const auto prepare_kernel :
         {prepare_mxfp4_gemm1, prepare_mxfp4_gemm2, prepare_converted_gemm1, prepare_converted_gemm2})
      if (const cudaError_t error = prepare_kernel()) return error;
    return cudaSuccess;
  }

  Mxfp4Gemms(const Weights& weights, const GroupedArgs& args, int)
      : converts_(kConvertsWeights && args.num_tokens >= kConvertedTokens) {
    encode(maps_, weights, CU_TENSOR_MAP_SWIZZLE_NONE);
    if (converts_) encode(swizzled_maps_, weights, CU_TENSOR_MAP_SWIZZLE_64B);
  }

  // From x to h. args.x: room for x in MXFP4's order of K.
  void launch_first(const GroupedArgs& args, const uint8_t* x, int h_split, cudaStream_t stream) const {
    uint8_t* ordered = const_cast<uint8_t*>(args.x);
    check_cuda(launch_order_tokens(x, ordered, args.num_tokens, stream), "launching order_tokens");
    if (converts_)
      check_cuda(launch_converted_gemm1(args, swizzled_maps_.w1, h_split, stream), "launching converted_gemm1");
    else
      check_cuda(launch_mxfp4_gemm1(args, maps_.w1, h_split, stream), "launching mxfp4_gemm1");
  }

  // From h to y, for a column pass.
  void launch_second(const GroupedArgs& args, int h_split, cudaStream_t stream) const {
    GroupedArgs last = args;
    if (converts_) {
      check_cuda(launch_converted_gemm2(args, swizzled_maps_.w2, h_split, stream), "launching converted_gemm2");
      check_cuda(launch_queue_unusual(args, stream), "launching queue_unusual");
      last.counters = counters_of_unusual(args.counters);
      if (args.first_column == 0)
        check_cuda(launch_mxfp4_gemm1(last, maps_.w1, h_split, stream), "launching mxfp4_gemm1");
    }
    check_cuda(launch_mxfp4_gemm2(last, maps_.w2, h_split, stream), "launching mxfp4_gemm2");
  }

 private:
  struct Maps {
    CUtensorMap w1, w2;
  };

  // A box is half of a tile's K block.
  static void encode(Maps& maps, const Weights& weights, CUtensorMapSwizzle swizzle) {
    constexpr int kBox = kBlockK / 2;  // bytes of a K block
    constexpr auto kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    encode_w1_map<kHidden / 2, kBox>(&maps.w1, weights.w1, Grouped::kW1BoxGroups, kPromotion, swizzle);
    encode_w2_map<kIntermediate / 2, kBox>(&maps.w2, weights.w2, Grouped::kW2BoxRows, kPromotion, swizzle);
  }

  bool converts_;
  Maps maps_, swizzled_maps_;
};

}  // namespace hopper_fused
