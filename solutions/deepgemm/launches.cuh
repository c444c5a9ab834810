// launches: launches the kernels of a recorded call again, for the tensors of another call. record.py records calls.
//
// A call is recorded as a CUDA graph, which is never executed. Its nodes hold each kernel, DeepGEMM's as well as
// Triton's, with its grid and the bytes of its parameters. From them a plan is made, which keeps no address: it keeps a
// pointer, or the address in a tensor map, as an owner (an argument, or a part of scratch) and an offset in it. Every
// kernel may start before the preceding one has ended, and waits for it itself (programmatic dependent launch).
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>

#include "common/host/recorded_call.h"

constexpr size_t kMostParameters = 32;
constexpr int kValue = -1;  // the owner of a parameter that is no address

// A parameter of a kernel: a number, a pointer or a tensor map.
struct Parameter {
  alignas(64) unsigned char bytes[sizeof(CUtensorMap)];  // as recorded
  size_t size;
  int owner;       // index of an argument or, after all of them, of a part of scratch; or kValue
  int64_t offset;  // from the owner's start
};
struct Launch {
  CUfunction function;
  unsigned grid[3], block[3], shared, cluster;
  std::vector<Parameter> parameters;
};
struct Plan {
  int64_t scratch_bytes;         // of the last part of scratch, the only one whose size differs from call to call
  std::vector<Launch> launches;  // none: such calls are launched from Python
};

using Caller = std::tuple<std::thread::id, int, CUstream>;  // Python keeps scratch by the same three
// What is remembered for one entry point.
struct Layer {
  std::mutex lock;
  std::map<Key, std::shared_ptr<const Plan>> plans;
  std::map<Caller, std::vector<Extent>> scratch;
};

// replay(*arguments): launches a call like a recorded one, and returns kDone. kUnknown: no such call was recorded yet.
// kOrdinary: the call has to be launched from Python.
static int64_t replay(Layer& layer, ffi::PackedArgs arguments) {
  Key key;
  std::vector<Extent> owners;
  key.reserve(64);
  owners.reserve(16);
  DLDevice device;
  if (!recognise(arguments, 0, key, owners, device)) return kOrdinary;

  const auto stream = stream_of(device);
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> guard(layer.lock);
    const auto found = layer.plans.find(key);
    if (found == layer.plans.end()) return layer.plans.size() < kMostPlans ? kUnknown : kOrdinary;
    plan = found->second;
    const auto scratch = layer.scratch.find({std::this_thread::get_id(), device.device_id, stream});
    if (scratch == layer.scratch.end() || scratch->second.back().bytes < plan->scratch_bytes) return kOrdinary;
    owners.insert(owners.end(), scratch->second.begin(), scratch->second.end());
  }
  if (plan->launches.empty() || !is_current(device)) return kOrdinary;

  // Python launches what is captured in a graph, as a graph gets scratch of its own.
  CUstreamCaptureStatus capturing;
  if (DRIVER(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing != CU_STREAM_CAPTURE_STATUS_NONE)
    return kOrdinary;

  for (const Launch& launch : plan->launches) {
    alignas(64) CUtensorMap place[kMostParameters];
    void* pointer[kMostParameters];
    for (size_t i = 0; i < launch.parameters.size(); i++) {
      const Parameter& p = launch.parameters[i];
      pointer[i] = &place[i];
      std::memcpy(&place[i], p.bytes, p.size);
      if (p.owner == kValue) continue;

      const int64_t address = owners[p.owner].address + p.offset;
      if (p.size == sizeof(CUtensorMap))
        check(DRIVER(cuTensorMapReplaceAddress)(&place[i], reinterpret_cast<void*>(address)),
              "cuTensorMapReplaceAddress");
      else
        std::memcpy(&place[i], &address, sizeof address);
    }

    CUlaunchAttribute attribute[2] = {};
    attribute[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute[0].value.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute[1].value.clusterDim.x = launch.cluster;
    attribute[1].value.clusterDim.y = attribute[1].value.clusterDim.z = 1;
    CUlaunchConfig config = launch_config(launch.grid, launch.block, launch.shared, stream);
    config.attrs = attribute;
    config.numAttrs = launch.cluster > 1 ? 2 : 1;
    check(DRIVER(cuLaunchKernelEx)(&config, launch.function, pointer, nullptr), "cuLaunchKernelEx");
  }
  return kDone;
}

// begin(): returns a new stream of the current device, whose launches are collected instead of executed.
static int64_t begin() {
  CUstream stream;
  check(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(DRIVER(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  return reinterpret_cast<int64_t>(stream);
}

// end(stream): returns the graph of what was launched on a stream of begin(), or 0 if that cannot be a graph. The
// stream is destroyed.
static int64_t end(int64_t stream) {
  CUgraph graph = nullptr;
  const auto of = reinterpret_cast<CUstream>(stream);
  if (DRIVER(cuStreamEndCapture)(of, &graph) != CUDA_SUCCESS) graph = nullptr;
  DRIVER(cuStreamDestroy_v2)(of);
  return reinterpret_cast<int64_t>(graph);
}

// Writes to `p` which owner's memory an address lies in, and where. Returns false if it lies in nobody's.
static bool place(const std::vector<Extent>& owners, int64_t address, Parameter& p) {
  for (size_t i = 0; i < owners.size(); i++) {
    if (address < owners[i].address || address >= owners[i].address + owners[i].bytes) continue;
    p.owner = i;
    p.offset = address - owners[i].address;
    return true;
  }
  return false;
}

// Writes to `p` what it points to. Returns false if that is unknown. `starts`: addresses that a tensor map may have.
// The driver does not say where in a tensor map the address is, so each of them is put in: it is the map's own if
// nothing changes.
static bool explain(const std::vector<Extent>& owners, const std::vector<int64_t>& starts, Parameter& p) {
  p.owner = kValue;
  if (p.size == sizeof(CUtensorMap)) {
    for (const int64_t start : starts) {
      CUtensorMap again;
      std::memcpy(&again, p.bytes, sizeof again);
      const bool put = DRIVER(cuTensorMapReplaceAddress)(&again, reinterpret_cast<void*>(start)) == CUDA_SUCCESS;
      if (put && std::memcmp(&again, p.bytes, sizeof again) == 0) return place(owners, start, p);
    }
    return false;
  }

  // Four bytes or fewer are a number, eight a pointer, which may be null.
  int64_t address = 0;
  if (p.size == sizeof address) std::memcpy(&address, p.bytes, sizeof address);
  return p.size <= 4 || (p.size == sizeof address && (address == 0 || place(owners, address, p)));
}

// Reads a graph's launches, which must follow one after another. Returns why they cannot be replayed, or "".
static std::string read(CUgraph graph, const std::vector<Extent>& owners, const std::vector<int64_t>& starts,
                        std::vector<Launch>& launches) {
  CUgraphNode next[2];
  CUgraphEdgeData edges[2];
  size_t count = 2;
  if (!graph || DRIVER(cuGraphGetRootNodes)(graph, next, &count) != CUDA_SUCCESS || count == 0) return "no launches";

  while (count == 1) {
    const CUgraphNode node = next[0];
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS_v2 of = {};
    if (DRIVER(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_KERNEL)
      return "a node without a kernel";
    check(DRIVER(cuGraphKernelNodeGetParams_v2)(node, &of), "cuGraphKernelNodeGetParams");
    if (!of.func && of.kern) check(DRIVER(cuKernelGetFunction)(&of.func, of.kern), "cuKernelGetFunction");
    if (!of.func || !of.kernelParams) return "a kernel without a function or parameters";

    Launch launch = {of.func,
                     {of.gridDimX, of.gridDimY, of.gridDimZ},
                     {of.blockDimX, of.blockDimY, of.blockDimZ},
                     of.sharedMemBytes,
                     1,
                     {}};
    CUlaunchAttributeValue value = {};
    if (DRIVER(cuGraphKernelNodeGetAttribute)(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value) == CUDA_SUCCESS) {
      if (value.clusterDim.y > 1 || value.clusterDim.z > 1) return "a cluster of more than one dimension";
      if (value.clusterDim.x > 1) launch.cluster = value.clusterDim.x;
    }

    size_t offset, size;
    while (DRIVER(cuFuncGetParamInfo)(of.func, launch.parameters.size(), &offset, &size) == CUDA_SUCCESS) {
      Parameter p = {};
      if (size > sizeof p.bytes || launch.parameters.size() == kMostParameters)
        return "a parameter too large or too many";
      std::memcpy(p.bytes, of.kernelParams[launch.parameters.size()], p.size = size);
      if (!explain(owners, starts, p)) {
        return "kernel " + std::to_string(launches.size()) + ": parameter " +
               std::to_string(launch.parameters.size()) + " is nobody's";
      }
      launch.parameters.push_back(p);
    }
    launches.push_back(launch);

    count = 2;
    check(DRIVER(cuGraphNodeGetDependentNodes_v2)(node, next, edges, &count), "cuGraphNodeGetDependentNodes");
  }
  return count == 0 ? "" : "launches beside one another";
}

// keep(graph, scratch, starts, *arguments): from now on, replay launches calls like this one as in the graph. Returns
// why it will not, or "". The graph is destroyed.
// scratch: address and bytes of each of its parts. starts: addresses in it that a tensor map may have.
static std::string keep(Layer& layer, ffi::PackedArgs given) {
  const auto graph = reinterpret_cast<CUgraph>(given[0].cast<int64_t>());
  const auto scratch = given[1].cast<ffi::Array<int64_t>>(), inside = given[2].cast<ffi::Array<int64_t>>();

  Key key;
  std::vector<Extent> owners;
  std::vector<int64_t> starts(inside.begin(), inside.end());
  DLDevice device;
  auto plan = std::make_shared<Plan>();
  std::string wrong = recognise(given, 3, key, owners, device) ? "" : "arguments";
  for (const Extent& owner : owners) starts.push_back(owner.address);
  for (size_t i = 0; i + 1 < scratch.size(); i += 2) owners.push_back({scratch[i], scratch[i + 1]});
  for (size_t i = 0; i < owners.size(); i++)
    for (size_t j = 0; j < i; j++)
      if (owners[i].address < owners[j].address + owners[j].bytes &&
          owners[j].address < owners[i].address + owners[i].bytes)
        wrong = "arguments share memory";  // it would be a guess which of them a pointer belongs to

  // Up to here it is this call that is wrong: another one with the same key may still be recorded.
  const bool another_may_do = !wrong.empty();
  if (wrong.empty()) wrong = read(graph, owners, starts, plan->launches);
  if (graph) DRIVER(cuGraphDestroy)(graph);
  if (another_may_do) return wrong;

  if (!wrong.empty()) plan->launches.clear();
  plan->scratch_bytes = owners.back().bytes;
  std::lock_guard<std::mutex> guard(layer.lock);
  layer.plans[key] = plan;
  return wrong;
}

// lend(device, stream, scratch): this thread's later calls on the stream use this scratch, until the next lend. An
// empty list takes it back.
static void lend(Layer& layer, int64_t device, int64_t stream, ffi::Array<int64_t> scratch) {
  const Caller caller = {std::this_thread::get_id(), (int)device, reinterpret_cast<CUstream>(stream)};
  std::vector<Extent> parts;
  for (size_t i = 0; i + 1 < scratch.size(); i += 2) parts.push_back({scratch[i], scratch[i + 1]});
  std::lock_guard<std::mutex> guard(layer.lock);
  if (parts.empty()) layer.scratch.erase(caller);
  else layer.scratch[caller] = parts;
}

// Returns replay, begin, end, keep and lend, for the calls of one entry point.
static ffi::Array<ffi::Function> functions() {
  const auto layer = std::make_shared<Layer>();
  return {ffi::Function::FromPacked(
              [layer](ffi::PackedArgs given, ffi::Any* answer) { *answer = replay(*layer, given); }),
          ffi::Function::FromTyped(begin),
          ffi::Function::FromTyped(end),
          ffi::Function::FromPacked(
              [layer](ffi::PackedArgs given, ffi::Any* why) { *why = ffi::String(keep(*layer, given)); }),
          ffi::Function::FromTyped([layer](int64_t device, int64_t stream, ffi::Array<int64_t> scratch) {
            lend(*layer, device, stream, scratch);
          })};
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(functions, functions);
