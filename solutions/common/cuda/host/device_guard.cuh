// device_guard: makes a device the current one, and restores the caller's on every way out, exceptions included.
#pragma once
#include "check_cuda.cuh"

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
