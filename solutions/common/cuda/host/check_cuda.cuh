// check_cuda: throw an exception for an error that a call of the CUDA runtime has returned.
#pragma once
#include <cuda_runtime.h>
#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

extern const char kSolutionName[];  // messages begin with it; each solution defines it

// Raises RuntimeError unless e is cudaSuccess. what: the message's words for what was being done.
inline void check_cuda(cudaError_t e, const char* what) {
  if (e != cudaSuccess) TVM_FFI_THROW(RuntimeError) << kSolutionName << ": " << what << ": " << cudaGetErrorString(e);
}
