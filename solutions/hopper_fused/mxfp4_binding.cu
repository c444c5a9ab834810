// mxfp4_binding: run_mxfp4, the layer with MXFP4 experts and top-k given as Python calls it. binding.cu has the others.
#include <tvm/ffi/tvm_ffi.h>

#include "common/cuda/arguments.cuh"
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/check_inputs.cuh"
#include "common/cuda/host/launch_layer.cuh"
#include "common/cuda/layer_sizes.cuh"
#include "common/cuda/weights.cuh"

using ffi::TensorView;

// Raises a ValueError that names the argument, what it is and what is wanted.
static void check_mxfp4_inputs(TensorView x, TensorView x_scale, TensorView topk_ids, TensorView topk_weights,
                               TensorView w1, TensorView w1_scale, TensorView w2, TensorView w2_scale,
                               int64_t local_expert_offset, TensorView output) {
  constexpr DLDataType kInt8 = {kDLInt, 8, 1};
  constexpr int64_t kExperts = kNumLocalExperts, kMostOffset = INT32_MAX - kNumLocalExperts;
  const int64_t t = x.ndim() > 0 ? x.size(0) : 0;
  const First first = {"hidden_states", x.device()};
  check(x, {"hidden_states", kFp8, 2, {t, kHidden}}, first);
  check(x_scale, {"hidden_states_scale", kFp32, 2, {t, kNumKBlocks1}}, first);
  check(topk_ids, {"topk_ids", kInt32, 2, {t, kTopK}}, first);
  check(topk_weights, {"topk_weights", kFp32, 2, {t, kTopK}}, first);
  check(w1, {"gemm1_weights", kInt8, 3, {kExperts, 2 * kIntermediate, kHidden / 2}}, first);
  check(w1_scale, {"gemm1_weights_scale", kInt8, 3, {kExperts, 2 * kIntermediate, kHidden / 32}}, first);
  check(w2, {"gemm2_weights", kInt8, 3, {kExperts, kHidden, kIntermediate / 2}}, first);
  check(w2_scale, {"gemm2_weights_scale", kInt8, 3, {kExperts, kHidden, kIntermediate / 32}}, first);
  check(output, {"output", kBf16, 2, {t, kHidden}}, first);
  if (local_expert_offset < 0 || local_expert_offset > kMostOffset)
    TVM_FFI_THROW(ValueError) << "local_expert_offset: got " << local_expert_offset << ", want 0 to " << kMostOffset;
  if (first.device.device_type != kDLCUDA)
    TVM_FFI_THROW(ValueError) << first.name << ": is on " << named(first.device) << ", want a CUDA device";
}

static void run_mxfp4(TensorView x, TensorView x_scale, TensorView topk_ids, TensorView topk_weights, TensorView w1,
                      TensorView w1_scale, TensorView w2, TensorView w2_scale, int64_t local_expert_offset,
                      TensorView output, int64_t option) {
  if (!kMxfp4Weights) TVM_FFI_THROW(RuntimeError) << kSolutionName << ": built for FP8 weights: call run_routed";
  check_mxfp4_inputs(x, x_scale, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  if (x.size(0) == 0) return;
  if (x.size(0) > kTokenLimit)
    TVM_FFI_THROW(ValueError) << "hidden_states: got " << x.size(0) << " tokens, want " << kTokenLimit << " or fewer";
  LayerArgs layer = {};
  layer.x = static_cast<const uint8_t*>(x.data_ptr());
  layer.x_scale = static_cast<const float*>(x_scale.data_ptr());
  layer.w1_scale = static_cast<const float*>(w1_scale.data_ptr());  // bytes, see FusedArgs
  layer.w2_scale = static_cast<const float*>(w2_scale.data_ptr());
  layer.output = static_cast<uint16_t*>(output.data_ptr());
  layer.topk_ids = static_cast<const int*>(topk_ids.data_ptr());
  layer.topk_weights = static_cast<const float*>(topk_weights.data_ptr());
  layer.num_tokens = (int)output.size(0);
  layer.local_expert_offset = (int)local_expert_offset;
  layer.routed_scaling_factor = 1.0f;
  launch_layer(layer, x.device(), w1, w2, option);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_mxfp4, run_mxfp4);
