// sm_count: a device's SMs, and what is needed once for each device.
#pragma once
#include <map>
#include <mutex>

#include "common/cuda/host/check_cuda.cuh"

// SMs of `device`, the current one, on which prepare(device, SMs) has run: once, but if it raises again at the next
// call. Static, as each library of a process has kernels of its own to prepare; see scratch.cuh.
template <class Prepare>
static int prepared_sm_count(int device, Prepare prepare) {
  static std::mutex lock;
  static auto* counts = new std::map<int, int>;
  std::lock_guard<std::mutex> guard(lock);
  int& known = (*counts)[device];
  if (known == 0) {
    int count = 0;
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "counting SMs");
    prepare(device, count);
    known = count;
  }
  return known;
}
