// layer: the whole MoE layer from one call: five launches up to kFewTokens tokens, six above.
//
//   route         above kFewTokens tokens; below, permute does it
//   permute       permute.cuh        x and scales in expert order; addresses and sizes of both products
//   gemm1         sm90_*.cu          g = x . w1^T, bf16
//   swiglu_quant  swiglu_quant.cuh   h = silu(gate) * up, FP8
//   gemm2         sm90_*.cu          y = h . w2^T, bf16, over x and g
//   combine       combine.cuh        output = sum of weight * y
//
// The host knows the number of tokens and nothing else, so sizes here are upper bounds and nothing waits.
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <string>

#include "combine.cuh"
#include "permute.cuh"
#include "swiglu_quant.cuh"

namespace ffi = tvm::ffi;

static void check_cuda(cudaError_t e, const char* what) {
  if (e != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "cutlass_grouped: " << what << ": " << cudaGetErrorString(e);
}

// Number of a tile of this build. Raises ValueError for a name that is not there.
static int64_t tile_number(ffi::String name) {
  int count;
  const GroupedGemm* const* all = tiles(&count);
  const std::string wanted = name;
  const auto found = std::find_if(all, all + count, [&](auto* tile) { return wanted == tile->name; });
  if (found == all + count) TVM_FFI_THROW(ValueError) << "cutlass_grouped: there is no tile " << wanted;
  return found - all;
}

// ---- arguments ----

constexpr DLDataType kFp32 = {kDLFloat, 32, 1}, kBf16 = {kDLBfloat, 16, 1}, kFp8 = {kDLFloat8_e4m3fn, 8, 1};

static bool fits(const ffi::TensorView& t, DLDataType dtype, std::initializer_list<int64_t> size, DLDevice device) {
  if (t.dtype().code != dtype.code || t.dtype().bits != dtype.bits || t.ndim() != (int)size.size()) return false;
  if (!std::equal(size.begin(), size.end(), t.shape().data())) return false;
  return t.device().device_type == kDLCUDA && t.device().device_id == device.device_id && t.IsContiguous() &&
         reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0;
}

// ---- scratch ----

struct Sizes {
  size_t total = 0;
  size_t take(size_t bytes) {
    const size_t at = total;
    total += (bytes + 1023) / 1024 * 1024;
    return at;
  }
};

// Lays scratch out from base on; with base 0 it only counts. Returns the bytes.
static size_t lay_out(Scratch& s, char* base, int tokens, int window, size_t workspace1, size_t workspace2) {
  Sizes sizes;
  const size_t t = tokens, w = window, chunks = (t + kChunk - 1) / kChunk;
  auto place = [&](auto*& pointer, size_t bytes) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + sizes.take(bytes));
  };
  place(s.gemm1, sizeof(GroupTable));
  place(s.gemm2, sizeof(GroupTable));
  place(s.start, (kLocal + 2) * sizeof(int));
  char* workspace;
  place(workspace, workspace1), s.workspace1 = workspace;
  place(workspace, workspace2), s.workspace2 = workspace;
  place(s.column, tokens > kFewTokens ? chunks * kLocal * sizeof(uint32_t) : 0);
  place(s.weight, tokens > kFewTokens ? t * kLocal * sizeof(float) : 0);
  place(s.pair, t * kTopK * sizeof(Pair));
  place(s.h, w * kInter);
  place(s.h_scale, w * kK2 * sizeof(float));
  place(s.x, w * kHidden);
  place(s.x_scale, w * kK1 * sizeof(float));
  place(s.g, w * 2 * kInter * sizeof(uint16_t));
  s.y = reinterpret_cast<uint16_t*>(s.x);
  static_assert(kHidden + kK1 * sizeof(float) + 2 * kInter * sizeof(uint16_t) >= kHidden * sizeof(uint16_t),
                "y fits over x, x_scale and g");
  return sizes.total;
}

// ---- launches ----

template <class Kernel>
static void launch(Kernel* kernel, dim3 grid, int threads, const Args& args, bool overlapped, cudaStream_t stream,
                   const char* what) {
  cudaLaunchAttribute attribute = overlapped_launch();
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlapped ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args), what);
}

// Restores the caller's device at the end.
struct OnDevice {
  int before = 0;
  bool changed = false;
  explicit OnDevice(int device) {
    check_cuda(cudaGetDevice(&before), "asking for the current device");
    changed = before != device;
    if (changed) check_cuda(cudaSetDevice(device), "choosing the tensors' device");
  }
  ~OnDevice() {
    if (changed) cudaSetDevice(before);
  }
};

// The layer on the current stream of the tensors' device, with tiles (see tile_number) for the two products. Returns
// false, having launched nothing, if an argument is not what the definition says; the caller finds out which.
static bool run_layer(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output, int64_t tile1, int64_t tile2) {
  const int64_t t = logits.ndim() > 0 ? logits.size(0) : 0;
  const DLDevice device = logits.device();
  if (!fits(logits, kFp32, {t, kExperts}, device) || !fits(bias, kBf16, {kExperts}, device) ||
      !fits(x, kFp8, {t, kHidden}, device) || !fits(x_scale, kFp32, {kK1, t}, device) ||
      !fits(w1, kFp8, {kLocal, 2 * kInter, kHidden}, device) ||
      !fits(w1_scale, kFp32, {kLocal, 2 * kInter / kBlock, kK1}, device) ||
      !fits(w2, kFp8, {kLocal, kHidden, kInter}, device) || !fits(w2_scale, kFp32, {kLocal, kK1, kK2}, device) ||
      !fits(output, kBf16, {t, kHidden}, device) || local_expert_offset < 0 ||
      local_expert_offset > kExperts - kLocal)
    return false;
  if (t == 0) return true;

  const OnDevice on_device(device.device_id);
  static int multiprocessors[64] = {};
  int& sms = multiprocessors[device.device_id % 64];
  if (sms == 0)
    check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device.device_id), "counting SMs");
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device.device_id));
  int num_tiles;
  const GroupedGemm* const* all = tiles(&num_tiles);
  if (tile1 < 0 || tile1 >= num_tiles || tile2 < 0 || tile2 >= num_tiles)
    TVM_FFI_THROW(ValueError) << "cutlass_grouped: tiles " << tile1 << ", " << tile2 << ", want 0 to " << num_tiles - 1;
  const GroupedGemm &gemm1 = *all[tile1], &gemm2 = *all[tile2];
  const int tokens = (int)t, most_rows = (int)std::min<int64_t>(t * kTopK, INT32_MAX);
  const int window = std::min(most_rows, kWindow);

  Args a = {};
  const size_t workspace1 = gemm1.workspace_bytes(sms), workspace2 = gemm2.workspace_bytes(sms);
  const size_t bytes = lay_out(a.scratch, nullptr, tokens, window, workspace1, workspace2);
  const ffi::Tensor scratch = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({(int64_t)bytes}),
                                                        DLDataType{kDLUInt, 8, 1}, device);
  lay_out(a.scratch, static_cast<char*>(scratch.data_ptr()), tokens, window, workspace1, workspace2);
  a.logits = static_cast<const float*>(logits.data_ptr());
  a.bias = static_cast<const uint16_t*>(bias.data_ptr());
  a.x = static_cast<const uint8_t*>(x.data_ptr());
  a.x_scale = static_cast<const float*>(x_scale.data_ptr());
  a.w1 = static_cast<const uint8_t*>(w1.data_ptr());
  a.w1_scale = static_cast<const float*>(w1_scale.data_ptr());
  a.w2 = static_cast<const uint8_t*>(w2.data_ptr());
  a.w2_scale = static_cast<const float*>(w2_scale.data_ptr());
  a.output = static_cast<uint16_t*>(output.data_ptr());
  a.num_tokens = tokens;
  a.local_expert_offset = (int)local_expert_offset;
  a.routed_scaling_factor = (float)routed_scaling_factor;
  a.window = window;
  a.weights_first1 = gemm1.weights_first;
  a.weights_first2 = gemm2.weights_first;
  a.scales_by_row = gemm1.scales_by_row;

  const bool few = tokens <= kFewTokens;
  const int chunks = (tokens + kChunk - 1) / kChunk;
  const int slices = chunks <= 20 ? 14 : chunks <= 40 ? 7 : chunks <= 140 ? 2 : 1;  // some 260 blocks, two an SM
  const int parts = tokens <= 1024 ? kCombinePieces / kCombineThreads : 1;
  if (!few) launch(route_kernel, dim3(chunks), kChunk * 32, a, false, stream, "launching route");
  for (int64_t first = 0; first < most_rows; first += window) {
    a.first_row = (int)first;
    launch(few ? permute_kernel<true> : permute_kernel<false>, dim3(chunks, slices), kChunk * 32, a, !few, stream,
           "launching permute");
    check_cuda(gemm1.launch(a.scratch.gemm1, a.scratch.workspace1, device.device_id, sms, stream), "launching gemm1");
    launch(swiglu_quant_kernel, dim3(std::min(8 * sms, window)), kSwigluThreads, a, true, stream, "launching swiglu_quant");
    check_cuda(gemm2.launch(a.scratch.gemm2, a.scratch.workspace2, device.device_id, sms, stream), "launching gemm2");
    const int combine_blocks = first == 0 ? tokens : std::min(tokens, 8 * sms);  // after the first, nearly always none
    launch(combine_kernel, dim3(combine_blocks, parts), kCombineThreads, a, true, stream, "launching combine");
  }
  return true;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer, run_layer);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(tile_number, tile_number);
