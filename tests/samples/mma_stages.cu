// A test build of mma_fused: launch_layer.cu, with launches in between that fill the scratch with NaN before the layer
// and copy it after. The kernel's own file is compiled beside it, unchanged.
#include <string>

#include "fused_layer.cuh"

using namespace mma_fused;

static cudaError_t launch_and_read_out(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);
#define launch_fused_layer launch_and_read_out
#include "launch_layer_cu.cuh"  // launch_layer.cu, under a name that is not compiled by itself
#undef launch_fused_layer

// Of the last layer: arrays as bytes.
static std::map<std::string, ffi::Tensor>& arrays = *new std::map<std::string, ffi::Tensor>;

static void copy_out(const std::string& name, const void* from, size_t bytes, cudaStream_t stream) {
  int device;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  const ffi::Tensor array = allocate({kDLCUDA, device}, bytes);
  arrays[name] = array;
  check_cuda(cudaMemcpyAsync(array.data_ptr(), from, bytes, cudaMemcpyDeviceToDevice, stream), "copying scratch");
}

static cudaError_t launch_and_read_out(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream) {
  arrays.clear();
  FusedScratch& scratch = *args.scratch;
  constexpr size_t kCounters = offsetof(FusedScratch, mask);
  uint8_t* from_mask = reinterpret_cast<uint8_t*>(&scratch) + kCounters;
  check_cuda(cudaMemsetAsync(from_mask, 0xff, sizeof(scratch) - kCounters, stream),
             "filling the scratch with NaN");
  check_cuda(cudaMemsetAsync(args.sums, 0xff, sums_bytes(ctas), stream), "filling the sums with NaN");
  if (const cudaError_t error = launch_fused_layer(maps, args, ctas, stream)) return error;
  copy_out("counters", &scratch, kCounters, stream);
  copy_out("h", scratch.h, sizeof(scratch.h), stream);
  copy_out("h_scale", scratch.h_scale, sizeof(scratch.h_scale), stream);
  return cudaSuccess;
}

static ffi::Map<ffi::String, ffi::Tensor> read_arrays() {
  ffi::Map<ffi::String, ffi::Tensor> found;
  for (const auto& [name, array] : arrays) found.Set(name, array);
  return found;
}

static ffi::Map<ffi::String, int64_t> read_numbers() {
  ffi::Map<ffi::String, int64_t> found;
  found.Set("mxfp4", kMxfp4Weights);
  return found;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_arrays, read_arrays);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_numbers, read_numbers);
