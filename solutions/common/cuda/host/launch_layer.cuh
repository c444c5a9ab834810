// launch_layer: what a solution defines, and binding.cu makes functions of Python of.
#pragma once
#include <tvm/ffi/tvm_ffi.h>

#include "common/cuda/arguments.cuh"

namespace ffi = tvm::ffi;

extern const int64_t kTokenLimit;     // most tokens of a call
extern const int64_t kQuantiseLimit;  // most tokens in bf16 that launch_layer takes as they are, with x_scale null

// Launches the layer on the device's current stream. Tokens: 1 to kTokenLimit; binding.cu has checked the arguments but
// option, which means something else in each solution and is checked there.
void launch_layer(const LayerArgs& layer, DLDevice device, ffi::TensorView w1, ffi::TensorView w2, int64_t option);
