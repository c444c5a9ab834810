// binding: the layer as Python calls it, a function for each form in argument_table.cuh and tokens in FP8 or bf16:
//
//   run_layer    run_layer_bf16     DeepSeek-V3's routing inside
//   run_renorm   run_renorm_bf16    softmax routing inside
//   run_routed   run_routed_bf16    the caller passes experts and weights
//   run_mxfp4                       the same with MXFP4 experts
//
// They take the form's arguments and after them the solution's own options. They check the arguments, and hand all to
// launch_layer. A library is built for one form; the functions of the other forms raise an error. Nothing waits for the
// device.
#include <tvm/ffi/tvm_ffi.h>

#include <string_view>

#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/host/check_arguments.cuh"
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "common/cuda/host/launch_layer.cuh"
#include "common/cuda/host/scratch.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/tokens/quantise_tokens.cuh"
#include "common/cuda/layer/weights.cuh"

// The function of the form that this library is built for.
constexpr std::string_view kForm = kMxfp4Weights ? "run_mxfp4"
                                   : kTopKGiven  ? "run_routed"
                                   : kRenorm     ? "run_renorm"
                                                 : "run_layer";

static LayerArgs layer_args(const CheckedArguments& checked) {
  LayerArgs layer = {};
  layer.logits = checked.data[argument::routing_logits];
  layer.bias = static_cast<const uint16_t*>(checked.data[argument::routing_bias]);
  layer.x = static_cast<const uint8_t*>(checked.data[argument::hidden_states]);
  layer.x_scale = static_cast<const float*>(checked.data[argument::hidden_states_scale]);
  layer.w1_scale = static_cast<const float*>(checked.data[argument::gemm1_weights_scale]);
  layer.w2_scale = static_cast<const float*>(checked.data[argument::gemm2_weights_scale]);
  layer.topk_ids = static_cast<const int*>(checked.data[argument::topk_ids]);
  layer.topk_weights = static_cast<const float*>(checked.data[argument::topk_weights]);
  layer.output = static_cast<uint16_t*>(checked.data[argument::output]);
  layer.num_tokens = (int)checked.num_tokens;
  layer.local_expert_offset = (int)checked.local_expert_offset;
  layer.routed_scaling_factor = (float)checked.routed_scaling_factor;
  return layer;
}

// Launches the layer. Without x_scale, tokens are bf16: up to kQuantiseLimit of them the layer's kernels quantise
// themselves, more are quantised here, by a kernel before the layer.
static void launch(LayerArgs layer, const Weights& weights, DLDevice device, ffi::PackedArgs options) {
  if (layer.x_scale || layer.num_tokens <= kQuantiseLimit) return launch_layer(layer, weights, device, options);
  const DeviceGuard guard(device.device_id);
  const size_t t = layer.num_tokens;
  const ffi::Tensor quantised = allocate(device, t * (kHidden + kNumKBlocks1 * sizeof(float)));
  auto* q = static_cast<uint8_t*>(quantised.data_ptr());
  auto* scales = reinterpret_cast<float*>(q + t * kHidden);
  check_cuda(launch_quantise_tokens(layer.x, (int)t, q, scales, current_stream(device)), "launching quantise_tokens");
  layer.x = q;
  layer.x_scale = scales;
  launch_layer(layer, weights, device, options);
}

// Checks a call of one of the functions below, and launches it. name: the form's function for tokens in FP8.
template <int kCount>
static void run(std::string_view name, const Argument (&form)[kCount], bool bf16_tokens, ffi::PackedArgs given) {
  if (name != kForm)
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": built for another form of the layer: call " << kForm;
  const int count = count_arguments(form, bf16_tokens);
  if (given.size() < count)
    TVM_FFI_THROW(TypeError) << name << ": got " << given.size() << " arguments, want " << count << " or more";

  const CheckedArguments checked = check_arguments(form, bf16_tokens, given);
  if (checked.num_tokens == 0) return;
  if (checked.num_tokens > kTokenLimit)
    TVM_FFI_THROW(ValueError) << argument::kNames[form[0].name] << ": got " << checked.num_tokens << " tokens, want "
                              << kTokenLimit << " or fewer";
  const Weights weights = {static_cast<const uint8_t*>(checked.data[argument::gemm1_weights]),
                           static_cast<const uint8_t*>(checked.data[argument::gemm2_weights])};
  launch(layer_args(checked), weights, checked.device, given.Slice(count));
}

// Exports a function, as TVM_FFI_DLL_EXPORT_TYPED_FUNC does, but one whose arguments a table lists.
#define EXPORT_LAYER(name, suffix, form, bf16_tokens)                                                     \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name##suffix(void*, const TVMFFIAny* given, int32_t count, \
                                                             TVMFFIAny*) {                                \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                            \
    run(#name, form, bf16_tokens, {reinterpret_cast<const ffi::AnyView*>(given), count});                 \
    TVM_FFI_SAFE_CALL_END();                                                                              \
  }

EXPORT_LAYER(run_layer, , kDsRouting, false)
EXPORT_LAYER(run_layer, _bf16, kDsRouting, true)
EXPORT_LAYER(run_renorm, , kRenormRouting, false)
EXPORT_LAYER(run_renorm, _bf16, kRenormRouting, true)
EXPORT_LAYER(run_routed, , kRouted, false)
EXPORT_LAYER(run_routed, _bf16, kRouted, true)
EXPORT_LAYER(run_mxfp4, , kRoutedMxfp4, false)
