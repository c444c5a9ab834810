// run: the functions that Python calls. They check the arguments, encode the TMA descriptors and launch the layer.
// Nothing here waits for the device.
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <mutex>
#include <tuple>

#include "check_inputs.cuh"
#include "check_routed_inputs.cuh"
#include "fused_layer.cuh"
#include "quantise_tokens.cuh"

static void check_cuda(cudaError_t e, const char* what) {
  if (e != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "mma_fused: " << what << ": " << cudaGetErrorString(e);
}

// 8-bit elements, boxes 128 bytes wide, swizzled.
template <int RANK>
static void encode_tensor_map(CUtensorMap* map, const void* base, const cuuint64_t (&size)[RANK],
                              const cuuint64_t (&stride)[RANK], const cuuint32_t (&box)[RANK]) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
               "looking up cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  cuuint32_t ones[RANK];
  for (auto& one : ones) one = 1;
  const CUresult e =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, RANK, const_cast<void*>(base), size, stride + 1, box, ones,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "mma_fused: cuTensorMapEncodeTiled failed with " << (int)e;
}

static TensorMaps tensor_maps(const FusedArgs& args) {
  TensorMaps maps = {};
  if constexpr (kTma) {
    const cuuint64_t hidden = kHidden, inter = kIntermediate;
    // W13 as [expert][group of 8 rows][half][row][K]: a box interleaves 8 rows of each half
    encode_tensor_map<5>(&maps.w1, args.w1, {hidden, 8, 2, inter / 8, kNumLocalExperts},
                         {1, hidden, inter * hidden, 8 * hidden, 2 * inter * hidden},
                         {kBlockK, 8, 2, kSliceColumns / 8, 1});
    encode_tensor_map<2>(&maps.w2, args.w2, {inter, kNumLocalExperts * hidden}, {1, inter}, {kBlockK, kColumnTile});
  }
  return maps;
}

static ffi::Tensor allocate(DLDevice device, size_t bytes) {
  return ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({(int64_t)bytes}), DLDataType{kDLUInt, 8, 1},
                                   device);
}

// Slabs of output sums, for the most tokens.
static size_t sums_bytes(int ctas) {
  return (size_t)ColumnTiles(ctas).most_places() * ctas * kMaxTokens * kColumnTile * sizeof(float);
}

// Scratch whose counters are zero between calls, and sums. Calls on one stream run in order and share it, made at the
// stream's first call. A graph that is being captured gets its own, from the graph's memory pool, as it may be replayed
// while its stream runs: made and zeroed by the capture's first layer, shared by the others, and held until the
// stream's next capture.
struct StreamScratch {
  ffi::Tensor fused, sums;
  unsigned long long capture;  // its number, 0 for none
};
static StreamScratch stream_scratch(DLDevice device, cudaStream_t stream, int ctas) {
  static std::mutex lock;
  // Never freed: at exit, torch may be gone already.
  static auto* of_stream = new std::map<std::tuple<int, int, cudaStream_t, bool>, StreamScratch>;
  cudaStreamCaptureStatus status;
  unsigned long long capture = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
  if (status == cudaStreamCaptureStatusNone) capture = 0;
  const std::tuple<int, int, cudaStream_t, bool> key(device.device_id, ctas, stream, capture != 0);
  std::lock_guard<std::mutex> guard(lock);
  const auto found = of_stream->find(key);
  if (found != of_stream->end() && found->second.capture == capture) return found->second;
  const StreamScratch fresh = {allocate(device, sizeof(FusedScratch)), allocate(device, sums_bytes(ctas)), capture};
  check_cuda(cudaMemsetAsync(fresh.fused.data_ptr(), 0, offsetof(FusedScratch, mask), stream), "zeroing the counters");
  of_stream->insert_or_assign(key, fresh);
  return fresh;
}

// Makes a device the current one, and restores the caller's on every way out, exceptions included.
struct DeviceGuard {
  int before;
  explicit DeviceGuard(int device) {
    check_cuda(cudaGetDevice(&before), "asking for the current device");
    if (before == device) before = -1;
    else check_cuda(cudaSetDevice(device), "choosing the tensors' device");
  }
  ~DeviceGuard() {
    if (before >= 0) cudaSetDevice(before);
  }
  DeviceGuard(const DeviceGuard&) = delete;
};

// SMs of the current device. The first call for a device also does what is needed once: it prepares the kernel.
static int sm_count(int device) {
  static std::mutex lock;
  static auto* counts = new std::map<int, int>;
  std::lock_guard<std::mutex> guard(lock);
  int& known = (*counts)[device];
  if (known == 0) {
    int count = 0, smem = 0;
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "counting SMs");
    check_cuda(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "asking for the size of shared memory");
    if (smem < (int)sizeof(Smem))
      TVM_FFI_THROW(RuntimeError) << "mma_fused: the device has " << smem << " bytes of shared memory for a block, "
                                  << "want " << sizeof(Smem);
    check_cuda(prepare_fused_layer(), "asking for shared memory");
    known = count;
  }
  return known;
}

// Launches the layer on the current stream of the device. ctas: of the launch, 0 for one per SM.
static void launch_layer(const LayerArgs& layer, DLDevice device, ffi::TensorView w1, ffi::TensorView w2,
                         int64_t ctas) {
  const DeviceGuard guard(device.device_id);
  const int sms = sm_count(device.device_id), grid = ctas == 0 ? sms : (int)ctas;
  if (grid < 1 || grid > sms) TVM_FFI_THROW(ValueError) << "ctas: got " << ctas << ", want 0 to " << sms;
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device.device_id));
  const StreamScratch scratch = stream_scratch(device, stream, grid);
  const FusedArgs args = {layer, static_cast<const uint8_t*>(w1.data_ptr()), static_cast<const uint8_t*>(w2.data_ptr()),
                          static_cast<FusedScratch*>(scratch.fused.data_ptr()),
                          static_cast<float*>(scratch.sums.data_ptr())};
  check_cuda(launch_fused_layer(tensor_maps(args), args, grid, stream), "launching fused_layer");
}

static void check_tokens(const char* name, int64_t tokens) {
  if (tokens > kMaxTokens)
    TVM_FFI_THROW(ValueError) << name << ": got " << tokens << " tokens, want " << kMaxTokens << " or fewer";
}

// The interface is compiled in: interface.cuh.
static void check_form(bool routed, const char* other) {
  if (routed != kTopKGiven)
    TVM_FFI_THROW(RuntimeError) << "mma_fused: built for the other interface: call " << other;
}

static void run_layer(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output, int64_t ctas) {
  check_form(false, "run_routed");
  check_inputs(logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, local_expert_offset, routed_scaling_factor,
               output);
  const int64_t t = logits.size(0);
  if (t == 0) return;
  check_tokens("routing_logits", t);
  const LayerArgs layer = {
      {logits.data_ptr(), static_cast<const uint16_t*>(bias.data_ptr()), static_cast<const uint8_t*>(x.data_ptr()),
       static_cast<const float*>(x_scale.data_ptr()), static_cast<const float*>(w1_scale.data_ptr()),
       static_cast<const float*>(w2_scale.data_ptr()), static_cast<uint16_t*>(output.data_ptr()), (int)t,
       (int)local_expert_offset, (float)routed_scaling_factor}};
  launch_layer(layer, logits.device(), w1, w2, ctas);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer, run_layer);

// With renorm routing there is no bias (the logits stand in for it and are not read as such), and every expert is
// local.
static void run_renorm(
    ffi::TensorView logits, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1, ffi::TensorView w1_scale,
    ffi::TensorView w2, ffi::TensorView w2_scale, ffi::TensorView output, int64_t ctas) {
  run_layer(logits, logits, x, x_scale, w1, w1_scale, w2, w2_scale, 0, 1.0, output, ctas);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_renorm, run_renorm);

// Behind a router: checked arguments, with tokens in FP8.
static void launch_routed(
    const void* x, const void* x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output, int64_t ctas) {
  const LayerArgs layer = {
      {nullptr, nullptr, static_cast<const uint8_t*>(x), static_cast<const float*>(x_scale),
       static_cast<const float*>(w1_scale.data_ptr()), static_cast<const float*>(w2_scale.data_ptr()),
       static_cast<uint16_t*>(output.data_ptr()), (int)output.size(0), (int)local_expert_offset, 1.0f},
      static_cast<const int*>(topk_ids.data_ptr()), static_cast<const float*>(topk_weights.data_ptr())};
  launch_layer(layer, output.device(), w1, w2, ctas);
}

static void run_routed(
    ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights,
    ffi::TensorView w1, ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale,
    int64_t local_expert_offset, ffi::TensorView output, int64_t ctas) {
  check_form(true, "run_layer");
  check_routed_inputs(x, &x_scale, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  if (x.size(0) == 0) return;
  check_tokens("hidden_states", x.size(0));
  launch_routed(x.data_ptr(), x_scale.data_ptr(), topk_ids, topk_weights, w1, w1_scale, w2, w2_scale,
                local_expert_offset, output, ctas);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed, run_routed);

// As run_routed, for tokens in bf16.
static void run_routed_bf16(
    ffi::TensorView x, ffi::TensorView topk_ids, ffi::TensorView topk_weights, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output, int64_t ctas) {
  check_form(true, "run_layer");
  check_routed_inputs(x, nullptr, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  const size_t t = x.size(0);
  if (t == 0) return;
  check_tokens("hidden_states", t);
  const DeviceGuard guard(x.device().device_id);
  const ffi::Tensor quantised = allocate(x.device(), t * (kHidden + kNumKBlocks1 * sizeof(float)));
  auto* q = static_cast<uint8_t*>(quantised.data_ptr());
  auto* scales = reinterpret_cast<float*>(q + t * kHidden);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, x.device().device_id));
  check_cuda(launch_quantise_tokens(x.data_ptr(), (int)t, q, scales, stream), "launching quantise_tokens");
  launch_routed(q, scales, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output, ctas);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed_bf16, run_routed_bf16);

// x [T, H] bf16 -> q [T, H] and scales [T, H / 128], all checked, on the current stream: for more tokens than the one
// launch takes.
static void quantise(ffi::TensorView x, ffi::TensorView q, ffi::TensorView scales) {
  const DeviceGuard guard(x.device().device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, x.device().device_id));
  check_cuda(launch_quantise_tokens(x.data_ptr(), (int)x.size(0), static_cast<uint8_t*>(q.data_ptr()),
                                    static_cast<float*>(scales.data_ptr()), stream),
             "launching quantise_tokens");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(quantise, quantise);
