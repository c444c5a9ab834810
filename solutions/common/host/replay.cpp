// replay: launches the kernels of a recorded call again, for the tensors of another call. replay.py records calls.
//
// A plan holds no address: a pointer is kept as what it points into, an argument or the scratch, and an offset.
#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "recorded_call.h"

enum Kind { kValue, kAddress, kMap };
constexpr int64_t kScratch = -1, kNull = -2;  // bases that are not the index of an argument
constexpr int kMostRank = 5;
constexpr int kMostParameters = 64;  // as in replay.py

struct Parameter {
  Kind kind;
  int64_t value;        // of kValue the bits, else the offset from the base, in bytes
  int64_t base;         // index of an argument, kScratch or kNull
  CUtensorMap map;      // of kMap: all but the address, which each replay sets
};
struct Launch {
  CUfunction function;
  unsigned grid[3], block[3], shared;
  std::vector<Parameter> parameters;
};
struct Plan {
  int64_t scratch_bytes;
  std::vector<Launch> launches;  // none: such calls are launched from Python
};

struct Plans {
  std::mutex lock;
  std::map<Key, std::shared_ptr<const Plan>> of;
};

static int64_t replay(Plans& plans, ffi::PackedArgs arguments) {
  Key key;
  std::vector<Extent> extents;
  key.reserve(64);
  extents.reserve(16);
  DLDevice device;
  if (!recognise(arguments, 0, key, extents, device)) return kOrdinary;
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> guard(plans.lock);
    const auto found = plans.of.find(key);
    if (found == plans.of.end()) return plans.of.size() < kMostPlans ? kUnknown : kOrdinary;
    plan = found->second;
  }
  if (plan->launches.empty() || !is_current(device)) return kOrdinary;

  ffi::Optional<ffi::Tensor> scratch;
  int64_t scratch_address = 0;
  if (plan->scratch_bytes > 0) {
    scratch = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({plan->scratch_bytes}),
                                        DLDataType{kDLUInt, 8, 1}, device);
    scratch_address = reinterpret_cast<int64_t>((*scratch).data_ptr());
  }
  const auto at = [&](const Parameter& p) {
    return p.base == kNull ? 0 : (p.base == kScratch ? scratch_address : extents[p.base].address) + p.value;
  };
  const auto stream = stream_of(device);
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
    const CUlaunchConfig config = launch_config(launch.grid, launch.block, launch.shared, stream);
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

static Parameter read_parameter(Reader& read, const std::vector<Extent>& extents) {
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
  int64_t base = 0;  // any valid address will do: each replay replaces it
  for (const Extent& extent : extents) base = std::max(base, extent.address / 256 * 256);
  check(DRIVER(cuTensorMapEncodeTiled)(&p.map, (CUtensorMapDataType)element, rank, reinterpret_cast<void*>(base), size, stride + 1, box, step,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)swizzle,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                       nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
                                           : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  return p;
}

// keep(numbers, *arguments): stores the plan for calls like this one. numbers: what plan() in replay.py returns.
static void keep(Plans& plans, ffi::PackedArgs arguments) {
  Key key;
  std::vector<Extent> extents;
  auto plan = std::make_shared<Plan>();
  DLDevice device;
  if (!recognise(arguments, 1, key, extents, device)) return;
  Reader read{arguments[0].cast<ffi::Array<int64_t>>()};
  plan->scratch_bytes = read();
  plan->launches.resize(read());
  for (Launch& launch : plan->launches) {
    launch.function = reinterpret_cast<CUfunction>(read());
    for (unsigned& size : launch.grid) size = read();
    launch.block[0] = read();
    launch.block[1] = launch.block[2] = 1;
    launch.shared = read();
    const int64_t count = read();
    for (int64_t i = 0; i < count; i++) launch.parameters.push_back(read_parameter(read, extents));
  }
  std::lock_guard<std::mutex> guard(plans.lock);
  plans.of[key] = plan;
}

// Returns the functions replay(*arguments) and keep(numbers, *arguments) for one entry point, with plans of their own.
static ffi::Array<ffi::Function> replay_and_keep() {
  const auto plans = std::make_shared<Plans>();
  return {ffi::Function::FromPacked([plans](ffi::PackedArgs given, ffi::Any* answer) { *answer = replay(*plans, given); }),
          ffi::Function::FromPacked([plans](ffi::PackedArgs given, ffi::Any*) { keep(*plans, given); })};
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(replay_and_keep, replay_and_keep);
