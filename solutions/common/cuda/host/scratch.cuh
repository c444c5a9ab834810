// scratch: device memory for one call, and memory that the calls of a stream share.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

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

// Calls on one stream run in order and share its scratch, which the stream's first call makes.
//
// A graph that is being captured gets scratch of its own, because it may be replayed while its stream runs. The memory
// comes from the graph's pool. The capture's first layer makes and zeroes it, all others share it, and it is held until
// the stream's next capture. After that the pool, which lives as long as the graph, keeps the memory for replays, each
// of which zeroes it.
struct StreamScratch {
  ffi::Tensor memory;
  unsigned long long capture;  // its number, 0 for none
  std::mutex launching;        // held while a layer is launched: kernels of two host threads must not mix
  bool failed = false;         // a layer was launched in part, so counters may be anything. Guarded by `launching`
};

struct StreamKey {
  int device;
  unsigned long long stream_id;
  bool captured;
  size_t bytes;
  bool operator<(const StreamKey& other) const {
    return std::tie(device, stream_id, captured, bytes) <
           std::tie(other.device, other.stream_id, other.captured, other.bytes);
  }
};

struct StreamScratches {
  std::mutex lock;
  std::map<StreamKey, std::shared_ptr<StreamScratch>> kept;
  // (device, handle) -> ids of the last two streams with that handle. Of streams that had the handle before the present
  // one, the last one's scratch is kept, as that stream may still be busy.
  std::map<std::pair<int, cudaStream_t>, std::pair<unsigned long long, unsigned long long>> last_two_ids;
};

// Never freed: at exit, torch may be gone already. Static, as a static variable of an inline function is shared by all
// libraries of a process, and another library's scratch has another layout.
static StreamScratches& stream_scratches() {
  static auto* scratches = new StreamScratches;
  return *scratches;
}

// Returns what tells a stream from all others. A handle does not: cudaStreamPerThread is another stream in each host
// thread, and a new stream may get the handle of one that was destroyed while still busy. So it is CUDA's id of the
// stream. CUDA does not tell the id while the stream is captured. Then no other stream has the handle, but for
// cudaStreamPerThread, in whose place an address of the thread is returned.
static unsigned long long stream_id(cudaStream_t stream, bool captured) {
  static thread_local char of_thread;
  if (captured) return reinterpret_cast<uintptr_t>(stream == cudaStreamPerThread ? &of_thread : (const void*)stream);
  if (stream == nullptr || stream == cudaStreamLegacy) return 0;  // one for each device, and the question takes 0.3 us
  unsigned long long id = 0;
  check_cuda(cudaStreamGetId(stream, &id), "asking for the stream's id");
  return id;
}

// With the lock held, when a stream makes its first call: drops the scratch of the stream that had its handle before
// the last one.
static void forget_old_streams(StreamScratches& scratches, int device, cudaStream_t stream, unsigned long long id) {
  if (stream == cudaStreamPerThread) return;  // here streams that have the same handle live side by side
  auto& [before, last] = scratches.last_two_ids.try_emplace({device, stream}, id, id).first->second;
  if (last == id) return;
  for (auto at = scratches.kept.begin(); at != scratches.kept.end();) {
    const bool gone = before != last && at->first.device == device && at->first.stream_id == before &&
                      !at->first.captured;
    at = gone ? scratches.kept.erase(at) : std::next(at);
  }
  before = std::exchange(last, id);
}

// Returns the scratch of a stream, of so many bytes. It is made if there is none; calls with other `bytes` have one of
// their own. Its first zeroed_bytes are zero when it is made, and kernels leave them so.
static std::shared_ptr<StreamScratch> stream_scratch(DLDevice device, cudaStream_t stream, size_t bytes,
                                                     size_t zeroed_bytes) {
  StreamScratches& scratches = stream_scratches();
  cudaStreamCaptureStatus status;
  unsigned long long capture = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
  if (status == cudaStreamCaptureStatusNone) capture = 0;
  const StreamKey key = {device.device_id, stream_id(stream, capture != 0), capture != 0, bytes};

  const std::lock_guard<std::mutex> guard(scratches.lock);  // torch allocates under it, and calls nothing of ours
  const auto at = scratches.kept.find(key);
  if (at != scratches.kept.end() && at->second->capture == capture) return at->second;

  const auto fresh = std::make_shared<StreamScratch>();
  fresh->memory = allocate(device, bytes);
  fresh->capture = capture;
  check_cuda(cudaMemsetAsync(fresh->memory.data_ptr(), 0, zeroed_bytes, stream), "zeroing the counters");
  if (!key.captured) forget_old_streams(scratches, device.device_id, stream, key.stream_id);
  scratches.kept.insert_or_assign(key, fresh);
  return fresh;
}

// launch(memory) launches a layer that uses the stream's scratch, while no other host thread does. Where it raises,
// some kernels may have been launched and others not, so that counters are not zero: the scratch is dropped, and the
// next call makes another one. Raises what launch raises.
template <class Launch>
static void with_stream_scratch(DLDevice device, cudaStream_t stream, size_t bytes, size_t zeroed_bytes,
                                Launch launch) {
  for (;;) {
    const std::shared_ptr<StreamScratch> scratch = stream_scratch(device, stream, bytes, zeroed_bytes);
    const std::lock_guard<std::mutex> launching(scratch->launching);
    if (scratch->failed) continue;  // in another thread, since we asked for it
    try {
      return launch(scratch->memory.data_ptr());
    } catch (...) {
      scratch->failed = true;
      StreamScratches& scratches = stream_scratches();
      const std::lock_guard<std::mutex> guard(scratches.lock);
      for (auto at = scratches.kept.begin(); at != scratches.kept.end();)
        at = at->second == scratch ? scratches.kept.erase(at) : std::next(at);
      throw;
    }
  }
}
