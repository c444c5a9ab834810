// binding: the layer as Python calls it: run_layer or run_renorm, where the top-k is given (kTopKGiven) run_routed, and
// each of them for tokens in bf16. They check the arguments and hand them to the solution's launch_layer. Nothing waits
// for the device.
#include <tvm/ffi/tvm_ffi.h>

#include "common/cuda/arguments.cuh"
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/check_inputs.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "common/cuda/host/launch_layer.cuh"
#include "common/cuda/layer_sizes.cuh"
#include "common/cuda/quantise_tokens.cuh"
#include "common/cuda/host/scratch.cuh"

using ffi::TensorView;

static void check_interface(bool topk_given, const char* other) {
  if (topk_given != kTopKGiven)
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": built for the other interface: call " << other;
}

static void check_tokens(const char* name, int64_t tokens) {
  if (tokens > kTokenLimit)
    TVM_FFI_THROW(ValueError) << name << ": got " << tokens << " tokens, want " << kTokenLimit << " or fewer";
}

static LayerArgs layer_args(TensorView x, const TensorView* x_scale, TensorView w1_scale, TensorView w2_scale,
                            TensorView output, int64_t local_expert_offset) {
  LayerArgs layer = {};
  layer.x = static_cast<const uint8_t*>(x.data_ptr());
  layer.x_scale = x_scale ? static_cast<const float*>(x_scale->data_ptr()) : nullptr;
  layer.w1_scale = static_cast<const float*>(w1_scale.data_ptr());
  layer.w2_scale = static_cast<const float*>(w2_scale.data_ptr());
  layer.output = static_cast<uint16_t*>(output.data_ptr());
  layer.num_tokens = (int)output.size(0);
  layer.local_expert_offset = (int)local_expert_offset;
  layer.routed_scaling_factor = 1.0f;
  return layer;
}

// Without x_scale, x is bf16: quantised by a kernel of its own where the layer's kernels do not do it.
static void launch(LayerArgs layer, DLDevice device, TensorView w1, TensorView w2, int64_t option) {
  if (layer.x_scale || layer.num_tokens <= kQuantiseLimit) return launch_layer(layer, device, w1, w2, option);
  const DeviceGuard guard(device.device_id);
  const size_t t = layer.num_tokens;
  const ffi::Tensor quantised = allocate(device, t * (kHidden + kNumKBlocks1 * sizeof(float)));
  auto* q = static_cast<uint8_t*>(quantised.data_ptr());
  auto* scales = reinterpret_cast<float*>(q + t * kHidden);
  check_cuda(launch_quantise_tokens(layer.x, (int)t, q, scales, current_stream(device)), "launching quantise_tokens");
  layer.x = q;
  layer.x_scale = scales;
  launch_layer(layer, device, w1, w2, option);
}

static void run_layer_of(TensorView logits, TensorView bias, TensorView x, const TensorView* x_scale, TensorView w1,
                         TensorView w1_scale, TensorView w2, TensorView w2_scale, int64_t local_expert_offset,
                         double routed_scaling_factor, TensorView output, int64_t option) {
  check_interface(false, "run_routed");
  check_inputs(logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  if (logits.size(0) == 0) return;
  check_tokens("routing_logits", logits.size(0));
  LayerArgs layer = layer_args(x, x_scale, w1_scale, w2_scale, output, local_expert_offset);
  layer.logits = logits.data_ptr();
  layer.bias = static_cast<const uint16_t*>(bias.data_ptr());
  layer.routed_scaling_factor = (float)routed_scaling_factor;
  launch(layer, logits.device(), w1, w2, option);
}

static void run_layer(TensorView logits, TensorView bias, TensorView x, TensorView x_scale, TensorView w1,
                      TensorView w1_scale, TensorView w2, TensorView w2_scale, int64_t local_expert_offset,
                      double routed_scaling_factor, TensorView output, int64_t option) {
  run_layer_of(logits, bias, x, &x_scale, w1, w1_scale, w2, w2_scale, local_expert_offset, routed_scaling_factor,
               output, option);
}

static void run_layer_bf16(TensorView logits, TensorView bias, TensorView x, TensorView w1, TensorView w1_scale,
                           TensorView w2, TensorView w2_scale, int64_t local_expert_offset,
                           double routed_scaling_factor, TensorView output, int64_t option) {
  run_layer_of(logits, bias, x, nullptr, w1, w1_scale, w2, w2_scale, local_expert_offset, routed_scaling_factor,
               output, option);
}

// With renorm routing there is no bias (the logits stand in for it and are not read as such), and every expert is
// local.
static void run_renorm(TensorView logits, TensorView x, TensorView x_scale, TensorView w1, TensorView w1_scale,
                       TensorView w2, TensorView w2_scale, TensorView output, int64_t option) {
  run_layer_of(logits, logits, x, &x_scale, w1, w1_scale, w2, w2_scale, 0, 1.0, output, option);
}

static void run_renorm_bf16(TensorView logits, TensorView x, TensorView w1, TensorView w1_scale, TensorView w2,
                            TensorView w2_scale, TensorView output, int64_t option) {
  run_layer_of(logits, logits, x, nullptr, w1, w1_scale, w2, w2_scale, 0, 1.0, output, option);
}

static void run_routed_of(TensorView x, const TensorView* x_scale, TensorView topk_ids, TensorView topk_weights,
                          TensorView w1, TensorView w1_scale, TensorView w2, TensorView w2_scale,
                          int64_t local_expert_offset, TensorView output, int64_t option) {
  check_interface(true, "run_layer");
  check_routed_inputs(x, x_scale, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  if (x.size(0) == 0) return;
  check_tokens("hidden_states", x.size(0));
  LayerArgs layer = layer_args(x, x_scale, w1_scale, w2_scale, output, local_expert_offset);
  layer.topk_ids = static_cast<const int*>(topk_ids.data_ptr());
  layer.topk_weights = static_cast<const float*>(topk_weights.data_ptr());
  launch(layer, x.device(), w1, w2, option);
}

static void run_routed(TensorView x, TensorView x_scale, TensorView topk_ids, TensorView topk_weights, TensorView w1,
                       TensorView w1_scale, TensorView w2, TensorView w2_scale, int64_t local_expert_offset,
                       TensorView output, int64_t option) {
  run_routed_of(x, &x_scale, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output, option);
}

static void run_routed_bf16(TensorView x, TensorView topk_ids, TensorView topk_weights, TensorView w1,
                            TensorView w1_scale, TensorView w2, TensorView w2_scale, int64_t local_expert_offset,
                            TensorView output, int64_t option) {
  run_routed_of(x, nullptr, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output, option);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer, run_layer);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer_bf16, run_layer_bf16);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_renorm, run_renorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_renorm_bf16, run_renorm_bf16);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed, run_routed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed_bf16, run_routed_bf16);
