// binding: the functions that Python calls, of which interface.cuh's form decides who may be called. They check the
// arguments and hand them to the solution's launch_layer. Nothing here waits for the device.
#include <tvm/ffi/tvm_ffi.h>

#include "check_inputs.cuh"
#include "device_guard.cuh"
#include "launch_layer.cuh"
#include "quantise_tokens.cuh"
#include "scratch.cuh"

static void check_interface(bool topk_given, const char* other) {
  if (topk_given != kTopKGiven)
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": built for the other interface: call " << other;
}

static void check_tokens(const char* name, int64_t tokens) {
  if (tokens > kTokenLimit)
    TVM_FFI_THROW(ValueError) << name << ": got " << tokens << " tokens, want " << kTokenLimit << " or fewer";
}

static void run_layer(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output, int64_t option) {
  check_interface(false, "run_routed");
  check_inputs(logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  const int64_t t = logits.size(0);
  if (t == 0) return;
  check_tokens("routing_logits", t);
  const LayerArgs layer = {
      {logits.data_ptr(), static_cast<const uint16_t*>(bias.data_ptr()), static_cast<const uint8_t*>(x.data_ptr()),
       static_cast<const float*>(x_scale.data_ptr()), static_cast<const float*>(w1_scale.data_ptr()),
       static_cast<const float*>(w2_scale.data_ptr()), static_cast<uint16_t*>(output.data_ptr()), (int)t,
       (int)local_expert_offset, (float)routed_scaling_factor}};
  launch_layer(layer, logits.device(), w1, w2, option);
}

// With renorm routing there is no bias (the logits stand in for it and are not read as such), and every expert is
// local.
static void run_renorm(
    ffi::TensorView logits, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1, ffi::TensorView w1_scale,
    ffi::TensorView w2, ffi::TensorView w2_scale, ffi::TensorView output, int64_t option) {
  run_layer(logits, logits, x, x_scale, w1, w1_scale, w2, w2_scale, 0, 1.0, output, option);
}

// With the top-k given: checked arguments, with tokens in FP8.
static void launch_routed(
    const void* x, const void* x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output, int64_t option) {
  const LayerArgs layer = {
      {nullptr, nullptr, static_cast<const uint8_t*>(x), static_cast<const float*>(x_scale),
       static_cast<const float*>(w1_scale.data_ptr()), static_cast<const float*>(w2_scale.data_ptr()),
       static_cast<uint16_t*>(output.data_ptr()), (int)output.size(0), (int)local_expert_offset, 1.0f},
      static_cast<const int*>(topk_ids.data_ptr()), static_cast<const float*>(topk_weights.data_ptr())};
  launch_layer(layer, output.device(), w1, w2, option);
}

static void run_routed(
    ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights,
    ffi::TensorView w1, ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale,
    int64_t local_expert_offset, ffi::TensorView output, int64_t option) {
  check_interface(true, "run_layer");
  check_routed_inputs(x, &x_scale, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  if (x.size(0) == 0) return;
  check_tokens("hidden_states", x.size(0));
  launch_routed(x.data_ptr(), x_scale.data_ptr(), topk_ids, topk_weights, w1, w1_scale, w2, w2_scale,
                local_expert_offset, output, option);
}

// As run_routed, for tokens in bf16.
static void run_routed_bf16(
    ffi::TensorView x, ffi::TensorView topk_ids, ffi::TensorView topk_weights, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output, int64_t option) {
  check_interface(true, "run_layer");
  check_routed_inputs(x, nullptr, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  const size_t t = x.size(0);
  if (t == 0) return;
  check_tokens("hidden_states", t);
  const DeviceGuard guard(x.device().device_id);
  const ffi::Tensor quantised = allocate(x.device(), t * (kHidden + kNumKBlocks1 * sizeof(float)));
  auto* q = static_cast<uint8_t*>(quantised.data_ptr());
  auto* scales = reinterpret_cast<float*>(q + t * kHidden);
  check_cuda(launch_quantise_tokens(x.data_ptr(), (int)t, q, scales, current_stream(x.device())),
             "launching quantise_tokens");
  launch_routed(q, scales, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output, option);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer, run_layer);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_renorm, run_renorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed, run_routed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed_bf16, run_routed_bf16);
