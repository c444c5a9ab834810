// replay: launches the kernels of a recorded call again, for the tensors of another call; replay.py records.
//
// A plan is found by what host code may look at: the shapes, dtypes, devices and alignment of the tensors, and the
// numbers. It holds no address: every pointer is an argument's or the scratch's, plus an offset.
#include <cuda.h>
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#ifndef REPLAY_DRIVER
#define REPLAY_DRIVER "libcuda.so.1"
#endif

namespace ffi = tvm::ffi;

enum Answer { kUnknown, kDone, kOrdinary };  // as in replay.py
enum Kind { kValue, kAddress, kMap };
constexpr int64_t kScratch = -1, kNull = -2;  // bases beside the arguments' numbers
constexpr int kMostRank = 5;
constexpr int kMostParameters = 64;  // as in replay.py
constexpr size_t kMostPlans = 4096;  // kinds of calls that are remembered; further ones take the ordinary way

template <class F>
static F driver(const char* name) {
  static void* library = dlopen(REPLAY_DRIVER, RTLD_LAZY);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found) TVM_FFI_THROW(RuntimeError) << "replay: " << REPLAY_DRIVER << " has no " << name;
  return reinterpret_cast<F>(found);
}
#define DRIVER(NAME) ([] { static const auto f = driver<decltype(&NAME)>(#NAME); return f; }())

static void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "replay: " << what << " failed with CUDA error " << (int)result;
}

struct Parameter {
  Kind kind;
  int64_t value;        // its bits, or the offset from the base
  int64_t base;
  CUtensorMap map;      // but for the address
};
struct Launch {
  CUfunction function;
  unsigned grid[3], threads, shared;
  std::vector<Parameter> parameters;
};
struct Plan {
  int64_t scratch_bytes;
  std::vector<Launch> launches;  // none: this call is to take the ordinary way
};

using Key = std::vector<int64_t>;
struct Plans {
  std::mutex lock;
  std::map<Key, std::shared_ptr<const Plan>> of;
};

// What a call is recognised by, and its tensors' addresses by argument; false if it cannot be replayed.
static bool recognise(ffi::PackedArgs arguments, int first, Key& key, std::vector<int64_t>& address,
                      DLDevice& device) {
  bool any = false;
  for (int i = first; i < arguments.size(); i++) {
    address.push_back(0);
    if (const auto tensor = arguments[i].try_cast<ffi::TensorView>()) {
      const DLDevice where = tensor->device();
      if (any && (where.device_type != device.device_type || where.device_id != device.device_id)) return false;
      if (!tensor->IsContiguous()) return false;
      any = true;
      device = where;
      const DLDataType t = tensor->dtype();
      address.back() = reinterpret_cast<int64_t>(tensor->data_ptr());
      key.push_back((int64_t)t.code << 32 | t.bits << 16 | t.lanes << 8 | tensor->ndim());
      key.push_back((int64_t)where.device_type << 32 | where.device_id);
      key.push_back(address.back() % 16);
      for (int d = 0; d < tensor->ndim(); d++) key.push_back(tensor->size(d));
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

static int64_t replay(Plans& plans, ffi::PackedArgs arguments) {
  Key key;
  std::vector<int64_t> address;
  key.reserve(64);
  address.reserve(16);
  DLDevice device;
  if (!recognise(arguments, 0, key, address, device)) return kOrdinary;
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> guard(plans.lock);
    const auto found = plans.of.find(key);
    if (found == plans.of.end()) return plans.of.size() < kMostPlans ? kUnknown : kOrdinary;
    plan = found->second;
  }
  CUdevice current;
  if (plan->launches.empty() || DRIVER(cuCtxGetDevice)(&current) != CUDA_SUCCESS || current != device.device_id) return kOrdinary;

  ffi::Optional<ffi::Tensor> scratch;
  int64_t scratch_address = 0;
  if (plan->scratch_bytes > 0) {
    scratch = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({plan->scratch_bytes}),
                                        DLDataType{kDLUInt, 8, 1}, device);
    scratch_address = reinterpret_cast<int64_t>((*scratch).data_ptr());
  }
  const auto at = [&](const Parameter& p) {
    return p.base == kNull ? 0 : (p.base == kScratch ? scratch_address : address[p.base]) + p.value;
  };
  const auto stream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  for (const Launch& launch : plan->launches) {
    const size_t count = launch.parameters.size();
    struct alignas(64) Place {
      CUtensorMap map;
      int64_t value;
    };
    Place place[kMostParameters];
    void* pointer[kMostParameters + 2];
    int64_t no_scratch = 0;
    for (size_t i = 0; i < count; i++) {
      const Parameter& p = launch.parameters[i];
      pointer[i] = &place[i].value;
      if (p.kind == kValue) {
        place[i].value = p.value;
      } else if (p.kind == kAddress) {
        place[i].value = at(p);
      } else {
        place[i].map = p.map;
        check(DRIVER(cuTensorMapReplaceAddress)(&place[i].map, reinterpret_cast<void*>(at(p))), "cuTensorMapReplaceAddress");
        pointer[i] = &place[i].map;
      }
    }
    pointer[count] = pointer[count + 1] = &no_scratch;  // Triton's own two, which recorded kernels do not use
    CUlaunchConfig config = {};
    config.gridDimX = launch.grid[0], config.gridDimY = launch.grid[1], config.gridDimZ = launch.grid[2];
    config.blockDimX = launch.threads, config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = launch.shared;
    config.hStream = stream;
    check(DRIVER(cuLaunchKernelEx)(&config, launch.function, pointer, nullptr), "cuLaunchKernelEx");
  }
  return kDone;
}

// Reads the numbers that replay.py writes, in its order.
struct Reader {
  ffi::Array<int64_t> numbers;
  size_t next = 0;
  int64_t operator()() { return numbers[next++]; }
};

static Parameter read_parameter(Reader& read, const std::vector<int64_t>& address) {
  Parameter p = {};
  p.kind = (Kind)read();
  if (p.kind != kValue) p.base = read();
  p.value = read();
  if (p.kind != kMap) return p;
  const int element = read(), bytes = read(), swizzle = read(), nan = read(), rank = read();
  cuuint64_t size[kMostRank], stride[kMostRank];
  cuuint32_t box[kMostRank], step[kMostRank] = {1, 1, 1, 1, 1};
  for (int d = rank - 1; d >= 0; d--) box[d] = read();
  for (int d = rank - 1; d >= 0; d--) size[d] = read();
  for (int d = rank - 1; d >= 0; d--) stride[d] = read() * bytes;
  void* base = reinterpret_cast<void*>(*std::max_element(address.begin(), address.end()) / 256 * 256);  // each call puts its own
  check(DRIVER(cuTensorMapEncodeTiled)(&p.map, (CUtensorMapDataType)element, rank, base, size, stride + 1, box, step,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)swizzle,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                       nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
                                           : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  return p;
}

// keep(numbers, *arguments): the plan of calls like this one.
static void keep(Plans& plans, ffi::PackedArgs arguments) {
  Key key;
  std::vector<int64_t> address;
  auto plan = std::make_shared<Plan>();
  DLDevice device;
  if (!recognise(arguments, 1, key, address, device)) return;
  Reader read{arguments[0].cast<ffi::Array<int64_t>>()};
  plan->scratch_bytes = read();
  plan->launches.resize(read());
  for (Launch& launch : plan->launches) {
    launch.function = reinterpret_cast<CUfunction>(read());
    for (unsigned& size : launch.grid) size = read();
    launch.threads = read();
    launch.shared = read();
    const int64_t count = read();
    for (int64_t i = 0; i < count; i++) launch.parameters.push_back(read_parameter(read, address));
  }
  std::lock_guard<std::mutex> guard(plans.lock);
  plans.of[key] = plan;
}

// replay(*arguments) and keep(numbers, *arguments), for the calls of one function.
static ffi::Array<ffi::Function> replay_and_keep() {
  const auto plans = std::make_shared<Plans>();
  return {ffi::Function::FromPacked([plans](ffi::PackedArgs given, ffi::Any* answer) { *answer = replay(*plans, given); }),
          ffi::Function::FromPacked([plans](ffi::PackedArgs given, ffi::Any*) { keep(*plans, given); })};
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(replay_and_keep, replay_and_keep);
