// device_guard: make the tensors' device current during a call, and get its current stream.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>

#include "common/cuda/host/check_cuda.cuh"

// The stream that is torch's current one on the device.
inline cudaStream_t current_stream(DLDevice device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device.device_id));
}

// Makes a device the current one, and restores the caller's on every way out, exceptions included.
struct DeviceGuard {
  int before;
  explicit DeviceGuard(int device) {
    check_cuda(cudaGetDevice(&before), "asking for the current device");
    if (before == device) before = -1;
    else check_cuda(cudaSetDevice(device), "choosing the tensors' device");
  }
  ~DeviceGuard() {
    if (before >= 0) cudaSetDevice(before);
  }
  DeviceGuard(const DeviceGuard&) = delete;
};
