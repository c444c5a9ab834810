// check_arguments: the host's check of a call against the arguments of its form (argument_table.cuh).
#pragma once
#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>
#include <string>

#include "common/cuda/host/argument_table.cuh"

namespace ffi = tvm::ffi;

// The arguments of all forms. Those that a call lacks are null, or numbers that change nothing.
struct CheckedArguments {
  void* data[argument::kCount] = {};
  int64_t local_expert_offset = 0;
  double routed_scaling_factor = 1.0;
  int64_t num_tokens = 0;
  DLDevice device = {};
};

// The first argument, on whose device all others must be.
struct First {
  const char* name;
  DLDevice device;
};

// ---- texts of messages ----

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

// ---- checks ----

// Raises a ValueError unless a tensor has the wanted dtype and shape, is on the device of `first`, contiguous, and
// aligned to 16 bytes.
inline void check_tensor(const ffi::TensorView& t, const Argument& want, int64_t num_tokens, const First& first) {
  const char* name = argument::kNames[want.name];
  int64_t size[3] = {};
  for (int i = 0; i < want.rank; i++) size[i] = want.size[i] == kTokens ? num_tokens : want.size[i];

  bool same = t.dtype().code == want.dtype.code && t.dtype().bits == want.dtype.bits && t.ndim() == want.rank;
  for (int i = 0; same && i < want.rank; i++) same = t.size(i) == size[i];
  if (!same)
    TVM_FFI_THROW(ValueError) << name << ": got " << described(t.dtype(), t.ndim(), t.shape().data()) << ", want "
                              << described(want.dtype, want.rank, size);
  if (t.device().device_type != first.device.device_type || t.device().device_id != first.device.device_id)
    TVM_FFI_THROW(ValueError) << name << ": is on " << named(t.device()) << ", want " << named(first.device) << " as "
                              << first.name;
  if (!t.IsContiguous())
    TVM_FFI_THROW(ValueError) << name << ": has strides " << listed(t.ndim(), t.strides().data())
                              << ", want a contiguous tensor";
  if (reinterpret_cast<uintptr_t>(t.data_ptr()) % 16)
    TVM_FFI_THROW(ValueError) << name << ": starts at an address that is not a multiple of 16 bytes";
}

// Returns the value. Raises a ValueError where it is out of range.
inline int64_t checked_integer(int64_t value, const Argument& want) {
  if (value < 0 || value > want.at_most)
    TVM_FFI_THROW(ValueError) << argument::kNames[want.name] << ": got " << value << ", want 0 to " << want.at_most;
  return value;
}

// Returns the arguments of a call, with which `given` begins, checked against those of a form. With bf16_tokens, tokens
// are in bf16 and the call leaves out the optional arguments. Raises a ValueError that names the argument, what it is
// and what is wanted, or a TypeError where a tensor is no tensor or a number no number.
template <int kCount>
CheckedArguments check_arguments(const Argument (&form)[kCount], bool bf16_tokens, ffi::PackedArgs given) {
  const auto tokens = given[0].cast<ffi::TensorView>();  // or logits: its first size is T in every form
  const First first = {argument::kNames[form[0].name], tokens.device()};
  CheckedArguments checked;
  checked.device = first.device;
  checked.num_tokens = tokens.ndim() > 0 ? tokens.size(0) : 0;

  int at = 0;
  for (Argument want : form) {
    if (bf16_tokens && want.optional) continue;
    if (bf16_tokens && want.name == argument::hidden_states) want.dtype = kBf16;
    const ffi::AnyView value = given[at++];
    switch (want.kind) {
      case ArgumentKind::kTensor: {
        const auto t = value.cast<ffi::TensorView>();
        check_tensor(t, want, checked.num_tokens, first);
        checked.data[want.name] = t.data_ptr();
        break;
      }
      case ArgumentKind::kInteger:
        checked.local_expert_offset = checked_integer(value.cast<int64_t>(), want);
        break;
      case ArgumentKind::kReal:
        checked.routed_scaling_factor = value.cast<double>();
    }
  }
  if (first.device.device_type != kDLCUDA)
    TVM_FFI_THROW(ValueError) << first.name << ": is on " << named(first.device) << ", want a CUDA device";
  return checked;
}

// Returns how many of a call's arguments check_arguments looks at. Options follow them.
template <int kCount>
int count_arguments(const Argument (&form)[kCount], bool bf16_tokens) {
  int count = kCount;
  for (const Argument& want : form) count -= bf16_tokens && want.optional;
  return count;
}
