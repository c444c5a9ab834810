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

// Launches the layer on the device's current stream. Tokens: 1 to kTokenLimit. binding.cu has checked the arguments,
// but for options: what Python passes behind the layer's own, which means something else in each solution.
void launch_layer(const LayerArgs& layer, const Weights& weights, DLDevice device, ffi::PackedArgs options);

// One of the options, or another value where fewer are passed.
inline int64_t option(ffi::PackedArgs options, int at, int64_t otherwise) {
  return at < options.size() ? options[at].cast<int64_t>() : otherwise;
}
