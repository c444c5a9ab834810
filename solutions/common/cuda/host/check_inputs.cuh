// check_inputs: the host's check of the layer's arguments against the definition.
#pragma once
#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <string>

#include "common/cuda/layer_sizes.cuh"

namespace ffi = tvm::ffi;

// What the definition requires of an argument.
struct Want {
  const char* name;
  DLDataType dtype;
  int rank;
  int64_t size[3];
};
// The argument on whose device the others must be.
struct First {
  const char* name;
  DLDevice device;
};
constexpr DLDataType kFp32 = {kDLFloat, 32, 1}, kBf16 = {kDLBfloat, 16, 1}, kFp8 = {kDLFloat8_e4m3fn, 8, 1};
constexpr DLDataType kInt32 = {kDLInt, 32, 1};

inline std::string listed(int count, const int64_t* values) {
  std::string text = "[";
  for (int i = 0; i < count; i++) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

inline std::string described(DLDataType dtype, int rank, const int64_t* size) {
  return "torch." + std::string(ffi::DLDataTypeToString(dtype)) + " of shape " + listed(rank, size);
}

inline std::string named(DLDevice device) {
  return device.device_type == kDLCUDA ? "cuda:" + std::to_string(device.device_id) : "another kind of device";
}

inline void check(const ffi::TensorView& t, const Want& want, const First& first) {
  bool same = t.dtype().code == want.dtype.code && t.dtype().bits == want.dtype.bits && t.ndim() == want.rank;
  for (int i = 0; same && i < want.rank; i++) same = t.size(i) == want.size[i];
  if (!same)
    TVM_FFI_THROW(ValueError) << want.name << ": got " << described(t.dtype(), t.ndim(), t.shape().data()) << ", want "
                              << described(want.dtype, want.rank, want.size);
  if (t.device().device_type != first.device.device_type || t.device().device_id != first.device.device_id)
    TVM_FFI_THROW(ValueError) << want.name << ": is on " << named(t.device()) << ", want " << named(first.device)
                              << " as " << first.name;
  if (!t.IsContiguous())
    TVM_FFI_THROW(ValueError) << want.name << ": has strides " << listed(t.ndim(), t.strides().data())
                              << ", want a contiguous tensor";
  if (reinterpret_cast<uintptr_t>(t.data_ptr()) % 16)
    TVM_FFI_THROW(ValueError) << want.name << ": starts at an address that is not a multiple of 16 bytes";
}

// The arguments of every interface; num_tokens and most_offset: what the others allow.
inline void check_weights_and_output(
    ffi::TensorView w1, ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale,
    int64_t local_expert_offset, ffi::TensorView output, int64_t num_tokens, int64_t most_offset, const First& first) {
  constexpr int64_t kExperts = kNumLocalExperts, kWeightBlocks = 2 * kIntermediate / kBlockK;
  check(w1, {"gemm1_weights", kFp8, 3, {kExperts, 2 * kIntermediate, kHidden}}, first);
  check(w1_scale, {"gemm1_weights_scale", kFp32, 3, {kExperts, kWeightBlocks, kNumKBlocks1}}, first);
  check(w2, {"gemm2_weights", kFp8, 3, {kExperts, kHidden, kIntermediate}}, first);
  check(w2_scale, {"gemm2_weights_scale", kFp32, 3, {kExperts, kNumKBlocks1, kNumKBlocks2}}, first);
  check(output, {"output", kBf16, 2, {num_tokens, kHidden}}, first);
  if (local_expert_offset < 0 || local_expert_offset > most_offset)
    TVM_FFI_THROW(ValueError) << "local_expert_offset: got " << local_expert_offset << ", want 0 to " << most_offset;
  if (first.device.device_type != kDLCUDA)
    TVM_FFI_THROW(ValueError) << first.name << ": is on " << named(first.device) << ", want a CUDA device";
}

// Checks all arguments; x_scale is null for tokens in bf16. Raises a ValueError that names the argument, what it is and
// what is wanted.
inline void check_inputs(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, const ffi::TensorView* x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output) {
  const int64_t t = logits.ndim() > 0 ? logits.size(0) : 0;
  const First first = {"routing_logits", logits.device()};
  check(logits, {"routing_logits", kRenorm ? kBf16 : kFp32, 2, {t, kNumExperts}}, first);
  if (!kRenorm) check(bias, {"routing_bias", kBf16, 1, {kNumExperts}}, first);
  check(x, {"hidden_states", x_scale ? kFp8 : kBf16, 2, {t, kHidden}}, first);
  if (x_scale) check(*x_scale, {"hidden_states_scale", kFp32, 2, {kNumKBlocks1, t}}, first);
  check_weights_and_output(w1, w1_scale, w2, w2_scale, local_expert_offset, output, t,
                           kNumExperts - kNumRoutedLocalExperts, first);
}

// As check_inputs, where the top-k is given.
inline void check_routed_inputs(
    ffi::TensorView x, const ffi::TensorView* x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights,
    ffi::TensorView w1, ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale,
    int64_t local_expert_offset, ffi::TensorView output) {
  const int64_t t = x.ndim() > 0 ? x.size(0) : 0;
  const First first = {"hidden_states", x.device()};
  check(x, {"hidden_states", x_scale ? kFp8 : kBf16, 2, {t, kHidden}}, first);
  if (x_scale) check(*x_scale, {"hidden_states_scale", kFp32, 2, {t, kNumKBlocks1}}, first);
  check(topk_ids, {"topk_ids", kInt32, 2, {t, kTopK}}, first);
  check(topk_weights, {"topk_weights", kFp32, 2, {t, kTopK}}, first);
  check_weights_and_output(w1, w1_scale, w2, w2_scale, local_expert_offset, output, t,
                           INT32_MAX - kNumLocalExperts, first);  // ids are int32
}
