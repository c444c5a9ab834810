// launch_layer.cu on the host, with launches, streams and memory that are made up: what a launch that fails leaves
// behind, and which calls share a scratch. The program's arguments are what happens, in order:
//
//   call TOKENS        a layer on the current stream
//   sum TOKENS         a layer whose output is summed over ranks
//   fail WHAT          the next launch of that name, or the next "map", fails
//   stream HANDLE ID   the current stream
//   capture NUMBER     the current stream is in this capture, 0 for none
//
// It prints a line for each event. Of a call: "route COUNTER SCRATCH", with what the grid barrier's counter held and a
// number for the scratch, "fused COUNTER SCRATCH", "reduced", "map", "gemm1", "gemm2", "combine", "raised" or "done"; with
// MXFP4 weights also the names of those kernels. At the end "kept N": allocations of scratch that are alive.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "launch_layer_cu.cuh"  // launch_layer.cu, under a name that is not compiled by itself

static std::string failing;
static unsigned long long stream_number = 0, capture_number = 0;
static std::set<void*> alive;
static std::vector<void*> seen;

static cudaError_t happens(const char* what) {
  const bool fails = failing == what;
  if (fails) failing.clear();
  printf("%s%s\n", what, fails ? " fails" : "");
  return fails ? cudaErrorInvalidValue : cudaSuccess;
}
static int number_of(void* scratch) {
  for (size_t i = 0; i < seen.size(); i++)
    if (seen[i] == scratch) return (int)i;
  seen.push_back(scratch);
  return (int)seen.size() - 1;
}

// ---- the kernels ----

namespace hopper_fused {

cudaError_t prepare_fused_layer() { return cudaSuccess; }
cudaError_t prepare_route_permute() { return cudaSuccess; }
cudaError_t prepare_grouped_gemm1() { return cudaSuccess; }
cudaError_t prepare_grouped_gemm2() { return cudaSuccess; }
cudaError_t prepare_mxfp4_gemm1() { return cudaSuccess; }
cudaError_t prepare_mxfp4_gemm2() { return cudaSuccess; }
cudaError_t prepare_converted_gemm1() { return cudaSuccess; }
cudaError_t prepare_converted_gemm2() { return cudaSuccess; }
cudaError_t launch_fused_layer(const TensorMaps&, const FusedArgs& args, int, cudaStream_t) {
  auto* scratch = reinterpret_cast<uint8_t*>(args.scratch) - offsetof(Scratch, fused);
  printf("fused %u %d\n", args.scratch->counters[kRouted], number_of(scratch));
  return happens("launch");
}
const Peers* peers_of(int64_t handle) {
  static const Peers peers = {};
  return handle == kNoPeers ? nullptr : &peers;
}
cudaError_t launch_reduced_layer(const TensorMaps&, const ReducedArgs&, int, cudaStream_t) {
  return happens("reduced");
}
// A grid barrier leaves as many arrivals as there are CTAs; gemm1 takes them away.
cudaError_t launch_route_permute(const GroupedArgs& args, int ctas, cudaStream_t) {
  printf("route %u %d\n", args.counters->grid_barrier, number_of(args.counters));
  const cudaError_t error = happens("launch");
  if (error == cudaSuccess) args.counters->grid_barrier += ctas;
  return error;
}
cudaError_t launch_grouped_gemm1(const GroupedArgs& args, const CUtensorMap&, int, cudaStream_t) {
  const cudaError_t error = happens("gemm1");
  if (error == cudaSuccess) args.counters->grid_barrier = 0;
  return error;
}
cudaError_t launch_grouped_gemm2(const GroupedArgs&, const Gemm2Maps&, int, cudaStream_t) { return happens("gemm2"); }
cudaError_t launch_order_tokens(const uint8_t*, uint8_t*, int, cudaStream_t) { return happens("order_tokens"); }
cudaError_t launch_mxfp4_gemm1(const GroupedArgs& args, const CUtensorMap&, int, cudaStream_t) {
  const cudaError_t error = happens("mxfp4_gemm1");
  if (error == cudaSuccess) args.counters->grid_barrier = 0;
  return error;
}
cudaError_t launch_mxfp4_gemm2(const GroupedArgs&, const CUtensorMap&, int, cudaStream_t) {
  return happens("mxfp4_gemm2");
}
cudaError_t launch_converted_gemm1(const GroupedArgs& args, const CUtensorMap&, int, cudaStream_t) {
  const cudaError_t error = happens("converted_gemm1");
  if (error == cudaSuccess) args.counters->grid_barrier = 0;
  return error;
}
cudaError_t launch_converted_gemm2(const GroupedArgs&, const CUtensorMap&, int, cudaStream_t) {
  return happens("converted_gemm2");
}
cudaError_t launch_queue_unusual(const GroupedArgs&, cudaStream_t) { return happens("queue_unusual"); }
cudaError_t launch_add_rows(const FusedArgs&, int, cudaStream_t) { return happens("add_rows"); }
cudaError_t launch_combine(const GroupedArgs&, int, int, cudaStream_t) { return happens("combine"); }

}  // namespace hopper_fused

// ---- CUDA ----

static CUresult encode(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                       const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return happens("map") == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#ifndef __CUDA_ARCH__  // the device has functions of these names, too
extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 132, cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "made to fail"; }
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long* id) {
  if (capture_number != 0) return cudaErrorStreamCaptureUnsupported;
  return *id = stream_number, cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* number,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = capture_number != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *number = capture_number;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *entry = reinterpret_cast<void*>(&encode);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// what nvcc calls for a program's device code, of which there is none here
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
}
#endif

static void release(DLManagedTensorVersioned* tensor) {
  alive.erase(tensor->dl_tensor.data);
  free(tensor->dl_tensor.data);
  delete[] tensor->dl_tensor.shape;
  delete tensor;
}
// Memory that holds what it held before is never zero: as 0xff bytes.
static int allocate_tensor(DLTensor* prototype, DLManagedTensorVersioned** out, void*,
                           void (*)(void*, const char*, const char*)) {
  auto* tensor = new DLManagedTensorVersioned{};
  tensor->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  tensor->deleter = release;
  tensor->dl_tensor = *prototype;
  tensor->dl_tensor.shape = new int64_t[1]{prototype->shape[0]};
  tensor->dl_tensor.strides = nullptr;
  tensor->dl_tensor.data = aligned_alloc(1024, (prototype->shape[0] + 1023) / 1024 * 1024);
  memset(tensor->dl_tensor.data, 0xff, offsetof(Scratch, fused) + offsetof(RoutingScratch, mask));
  alive.insert(tensor->dl_tensor.data);
  *out = tensor;
  return 0;
}

static void call(int tokens, int64_t peers = kNoPeers) {
  const float scale = 1.0f;
  const uint8_t weight = 0;
  const ffi::AnyView options[] = {2, peers};  // h_split; peers
  LayerArgs layer = {};
  layer.num_tokens = tokens;
  layer.x_scale = &scale;
  try {
    launch_layer(layer, {&weight, &weight}, {kDLCUDA, 0}, ffi::PackedArgs(options, 2));
    printf("done\n");
  } catch (const std::exception&) {
    printf("raised\n");
  }
}

int main(int count, char** words) {
  TVMFFIEnvSetDLPackManagedTensorAllocator(allocate_tensor, 1, nullptr);
  TVMFFIEnvSetStream(kDLCUDA, 0, reinterpret_cast<void*>(0x100), nullptr);
  for (int i = 1; i < count; i++) {
    const std::string word = words[i];
    if (word == "call") call(atoi(words[++i]));
    if (word == "sum") call(atoi(words[++i]), kNoPeers + 1);
    if (word == "fail") failing = words[++i];
    if (word == "capture") capture_number = atoi(words[++i]);
    if (word == "stream") {
      TVMFFIEnvSetStream(kDLCUDA, 0, reinterpret_cast<void*>((uintptr_t)atoi(words[++i])), nullptr);
      stream_number = atoi(words[++i]);
    }
  }
  printf("kept %zu\n", alive.size());
}
