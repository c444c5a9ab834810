// check_cuda: CUDA's errors as exceptions.
#pragma once
#include <cuda_runtime.h>
#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

extern const char kSolutionName[];  // messages begin with it; each solution defines it

// Raises RuntimeError. what: was being done.
inline void check_cuda(cudaError_t e, const char* what) {
  if (e != cudaSuccess) TVM_FFI_THROW(RuntimeError) << kSolutionName << ": " << what << ": " << cudaGetErrorString(e);
}
