// sm_count: a device's number of SMs, and work that a library has to do once for each device.
#pragma once
#include <map>
#include <mutex>

#include "common/cuda/host/check_cuda.cuh"

// Returns the SMs of `device`, which is current. The first call for a device runs prepare(device, SMs), and so does the
// next one after prepare has raised. Static, as each library of a process has kernels of its own; see scratch.cuh.
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
