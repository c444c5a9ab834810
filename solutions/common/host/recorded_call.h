// recorded_call: the key by which a call's recorded launches are found, and the driver functions that launch kernels.
// replay.cpp and deepgemm's launches.cuh include it.
//
// The key is what host code may look at: the shapes, dtypes, devices and alignment of the call's tensors, and its
// numbers; no address. All functions are static, because libraries of several solutions are in one process.
#pragma once
#include <cuda.h>
#include <dlfcn.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstring>
#include <vector>

#ifndef CUDA_DRIVER
#define CUDA_DRIVER "libcuda.so.1"
#endif

namespace ffi = tvm::ffi;

enum Answer { kUnknown, kDone, kOrdinary };  // of replay, as in Python: no such call is kept; launched; launch from Python
constexpr size_t kMostPlans = 4096;          // keys of an entry point; calls with further ones are launched from Python

template <class F>
static F driver(const char* name) {
  static void* library = dlopen(CUDA_DRIVER, RTLD_LAZY);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found) TVM_FFI_THROW(RuntimeError) << "replay: " << CUDA_DRIVER << " has no " << name;
  return reinterpret_cast<F>(found);
}
#define DRIVER(NAME) ([] { static const auto f = driver<decltype(&NAME)>(#NAME); return f; }())

static void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "replay: " << what << " failed with CUDA error " << (int)result;
}

struct Extent {
  int64_t address, bytes;  // zeros for a number
};
using Key = std::vector<int64_t>;

// The key of a call, the extent of each argument from the first on, and the device of the tensors; false if such a call
// cannot be launched again.
static bool recognise(ffi::PackedArgs arguments, int first, Key& key, std::vector<Extent>& extents, DLDevice& device) {
  bool any = false;
  for (int i = first; i < arguments.size(); i++) {
    extents.push_back({0, 0});
    if (const auto tensor = arguments[i].try_cast<ffi::TensorView>()) {
      const DLDevice where = tensor->device();
      if (any && (where.device_type != device.device_type || where.device_id != device.device_id)) return false;
      if (!tensor->IsContiguous()) return false;
      any = true;
      device = where;
      const DLDataType t = tensor->dtype();
      int64_t elements = 1;
      const int64_t address = reinterpret_cast<int64_t>(tensor->data_ptr());
      key.push_back((int64_t)t.code << 32 | t.bits << 16 | t.lanes << 8 | tensor->ndim());
      key.push_back((int64_t)where.device_type << 32 | where.device_id);
      key.push_back(address % 16);
      for (int d = 0; d < tensor->ndim(); d++) {
        key.push_back(tensor->size(d));
        elements *= tensor->size(d);
      }
      extents.back() = {address, elements * t.bits * t.lanes / 8};
    } else if (const auto integer = arguments[i].as<int64_t>()) {
      key.push_back(-1);
      key.push_back(*integer);
    } else if (const auto number = arguments[i].as<double>()) {
      key.push_back(-2);
      key.push_back(0);
      std::memcpy(&key.back(), &*number, sizeof(double));
    } else {
      return false;
    }
  }
  return any;
}

static bool is_current(DLDevice device) {
  CUdevice current;
  return DRIVER(cuCtxGetDevice)(&current) == CUDA_SUCCESS && current == device.device_id;
}

static CUstream stream_of(DLDevice device) {
  return static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

static CUlaunchConfig launch_config(const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared, CUstream stream) {
  CUlaunchConfig config = {};
  config.gridDimX = grid[0], config.gridDimY = grid[1], config.gridDimZ = grid[2];
  config.blockDimX = block[0], config.blockDimY = block[1], config.blockDimZ = block[2];
  config.sharedMemBytes = shared;
  config.hStream = stream;
  return config;
}
