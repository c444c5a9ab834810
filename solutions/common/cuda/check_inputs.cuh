// check_inputs: the host's check of the layer's arguments against the definition.
#pragma once
#include <tvm/ffi/tvm_ffi.h>

#include <string>

#include "layer_sizes.cuh"

namespace ffi = tvm::ffi;

// What the definition requires of an argument.
struct Want {
  const char* name;
  DLDataType dtype;
  int rank;
  int64_t size[3];
};
constexpr DLDataType kFp32 = {kDLFloat, 32, 1}, kBf16 = {kDLBfloat, 16, 1}, kFp8 = {kDLFloat8_e4m3fn, 8, 1};

static std::string listed(int count, const int64_t* values) {
  std::string text = "[";
  for (int i = 0; i < count; i++) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

static std::string described(DLDataType dtype, int rank, const int64_t* size) {
  return "torch." + std::string(ffi::DLDataTypeToString(dtype)) + " of shape " + listed(rank, size);
}

static std::string named(DLDevice device) {
  return device.device_type == kDLCUDA ? "cuda:" + std::to_string(device.device_id) : "another kind of device";
}

static void check(const ffi::TensorView& t, const Want& want, const ffi::TensorView& first) {
  bool same = t.dtype().code == want.dtype.code && t.dtype().bits == want.dtype.bits && t.ndim() == want.rank;
  for (int i = 0; same && i < want.rank; i++) same = t.size(i) == want.size[i];
  if (!same)
    TVM_FFI_THROW(ValueError) << want.name << ": got " << described(t.dtype(), t.ndim(), t.shape().data()) << ", want "
                              << described(want.dtype, want.rank, want.size);
  if (first.device().device_type != kDLCUDA || t.device().device_type != kDLCUDA ||
      t.device().device_id != first.device().device_id)
    TVM_FFI_THROW(ValueError) << want.name << ": is on " << named(t.device()) << ", want a CUDA device, "
                              << named(first.device()) << " as routing_logits";
  if (!t.IsContiguous())
    TVM_FFI_THROW(ValueError) << want.name << ": has strides " << listed(t.ndim(), t.strides().data())
                              << ", want a contiguous tensor";
  if (reinterpret_cast<uintptr_t>(t.data_ptr()) % 16)
    TVM_FFI_THROW(ValueError) << want.name << ": starts at an address that is not a multiple of 16 bytes";
}

// Checks all arguments. Raises a ValueError that names the argument, what it is and what is wanted.
static void check_inputs(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output) {
  const int64_t t = logits.ndim() > 0 ? logits.size(0) : 0;
  check(logits, {"routing_logits", kRenorm ? kBf16 : kFp32, 2, {t, kNumExperts}}, logits);
  if (!kRenorm) check(bias, {"routing_bias", kBf16, 1, {kNumExperts}}, logits);
  check(x, {"hidden_states", kFp8, 2, {t, kHidden}}, logits);
  check(x_scale, {"hidden_states_scale", kFp32, 2, {kNumKBlocks1, t}}, logits);
  check(w1, {"gemm1_weights", kFp8, 3, {kNumLocalExperts, 2 * kIntermediate, kHidden}}, logits);
  check(w1_scale, {"gemm1_weights_scale", kFp32, 3, {kNumLocalExperts, 2 * kIntermediate / kBlockK, kNumKBlocks1}}, logits);
  check(w2, {"gemm2_weights", kFp8, 3, {kNumLocalExperts, kHidden, kIntermediate}}, logits);
  check(w2_scale, {"gemm2_weights_scale", kFp32, 3, {kNumLocalExperts, kNumKBlocks1, kNumKBlocks2}}, logits);
  check(output, {"output", kBf16, 2, {t, kHidden}}, logits);
  if (local_expert_offset < 0 || local_expert_offset > kNumExperts - kNumLocalExperts)
    TVM_FFI_THROW(ValueError) << "local_expert_offset: got " << local_expert_offset << ", want 0 to "
                              << kNumExperts - kNumLocalExperts;
}
