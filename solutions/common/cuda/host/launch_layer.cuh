// launch_layer: the function that each solution defines to launch the layer; binding.cu calls it for Python.
#pragma once
#include <tvm/ffi/tvm_ffi.h>

#include <cstdint>

#include "common/cuda/layer/arguments.cuh"

namespace ffi = tvm::ffi;

extern const int64_t kTokenLimit;     // most tokens of a call
extern const int64_t kQuantiseLimit;  // most tokens in bf16 that launch_layer takes as they are, with x_scale null

struct Weights {
  const uint8_t* w1;  // [E_local, 2 I, H] fp8, or the bytes of MXFP4
  const uint8_t* w2;  // [E_local, H, I]
};

// Launches the layer, with 1 to kTokenLimit tokens, on the device's current stream. binding.cu has checked all
// arguments but the options. These are what Python passes after the layer's own arguments, and differ from solution to
// solution.
void launch_layer(const LayerArgs& layer, const Weights& weights, DLDevice device, ffi::PackedArgs options);

// Returns the option number `at`, or `otherwise` where fewer are passed.
inline int64_t option(ffi::PackedArgs options, int at, int64_t otherwise) {
  return at < options.size() ? options[at].cast<int64_t>() : otherwise;
}
