// scratch: device memory for one call, and memory that the calls of a stream share.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "common/cuda/host/check_cuda.cuh"

inline ffi::Tensor allocate(DLDevice device, size_t bytes) {
  return ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({(int64_t)bytes}), DLDataType{kDLUInt, 8, 1},
                                   device);
}

// Places arrays in one allocation. With a null base it only counts the bytes.
struct BumpAllocator {
  uint8_t* base;
  size_t alignment = 256;
  size_t bytes = 0;
  template <class T>
  void allocate(T*& array, size_t count) {
    array = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + alignment - 1) / alignment * alignment;
  }
};

// Calls on one stream run in order and share its scratch, made at the stream's first call. A graph that is being
// captured gets its own, from the graph's memory pool, as it may be replayed while its stream runs: made and zeroed by
// the capture's first layer, shared by the others, and held until the stream's next capture. Then the pool, which lives
// as long as the graph, keeps it for replays, each of which zeroes it.
struct StreamScratch {
  ffi::Tensor memory;
  // Held while a layer of several kernels is launched: those of another host thread must not come in between.
  std::shared_ptr<std::mutex> launching;
  unsigned long long capture;  // its number, 0 for none
};

// The first zeroed_bytes are zero when it is made; kernels leave them so. Calls that need other `bytes` have their own.
// The function is static, as a static variable of an inline one is shared by all libraries of a process, and another
// library's scratch has another layout.
static StreamScratch stream_scratch(DLDevice device, cudaStream_t stream, size_t bytes, size_t zeroed_bytes) {
  static std::mutex lock;
  // Never freed: at exit, torch may be gone already.
  static auto* of_stream = new std::map<std::tuple<int, cudaStream_t, bool, size_t>, StreamScratch>;
  cudaStreamCaptureStatus status;
  unsigned long long capture = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
  if (status == cudaStreamCaptureStatusNone) capture = 0;
  const std::tuple<int, cudaStream_t, bool, size_t> key(device.device_id, stream, capture != 0, bytes);
  std::lock_guard<std::mutex> guard(lock);  // torch allocates under it, and calls nothing of ours
  const auto found = of_stream->find(key);
  if (found != of_stream->end() && found->second.capture == capture) return found->second;
  const StreamScratch fresh = {allocate(device, bytes), std::make_shared<std::mutex>(), capture};
  check_cuda(cudaMemsetAsync(fresh.memory.data_ptr(), 0, zeroed_bytes, stream), "zeroing the counters");
  of_stream->insert_or_assign(key, fresh);
  return fresh;
}
