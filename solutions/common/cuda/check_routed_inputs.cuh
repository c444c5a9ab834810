// check_routed_inputs: the host's check of the arguments of the layer behind a router.
#pragma once
#include "check_inputs.cuh"

static void check_beside(const ffi::TensorView& t, const Want& want, const ffi::TensorView& x) {
  if (x.device().device_type != kDLCUDA || t.device().device_type != kDLCUDA ||
      t.device().device_id != x.device().device_id)
    TVM_FFI_THROW(ValueError) << want.name << ": is on " << named(t.device()) << ", want a CUDA device, "
                              << named(x.device()) << " as hidden_states";
  check(t, want, t);
}

// Checks all arguments; x_scale is null for tokens in bf16. Raises a ValueError that names the argument, what it is and
// what is wanted.
static void check_routed_inputs(
    ffi::TensorView x, const ffi::TensorView* x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights,
    ffi::TensorView w1, ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale,
    int64_t local_expert_offset, ffi::TensorView output) {
  constexpr DLDataType kInt32 = {kDLInt, 32, 1};
  constexpr int64_t kMostOffset = INT32_MAX - kNumLocalExperts;  // ids are int32
  const int64_t t = x.ndim() > 0 ? x.size(0) : 0;
  check_beside(x, {"hidden_states", x_scale ? kFp8 : kBf16, 2, {t, kHidden}}, x);
  if (x_scale) check_beside(*x_scale, {"hidden_states_scale", kFp32, 2, {t, kNumKBlocks1}}, x);
  check_beside(topk_ids, {"topk_ids", kInt32, 2, {t, kTopK}}, x);
  check_beside(topk_weights, {"topk_weights", kFp32, 2, {t, kTopK}}, x);
  check_beside(w1, {"gemm1_weights", kFp8, 3, {kNumLocalExperts, 2 * kIntermediate, kHidden}}, x);
  check_beside(w1_scale, {"gemm1_weights_scale", kFp32, 3, {kNumLocalExperts, 2 * kIntermediate / kBlockK, kNumKBlocks1}}, x);
  check_beside(w2, {"gemm2_weights", kFp8, 3, {kNumLocalExperts, kHidden, kIntermediate}}, x);
  check_beside(w2_scale, {"gemm2_weights_scale", kFp32, 3, {kNumLocalExperts, kNumKBlocks1, kNumKBlocks2}}, x);
  check_beside(output, {"output", kBf16, 2, {t, kHidden}}, x);
  if (local_expert_offset < 0 || local_expert_offset > kMostOffset)
    TVM_FFI_THROW(ValueError) << "local_expert_offset: got " << local_expert_offset << ", want 0 to " << kMostOffset;
}
