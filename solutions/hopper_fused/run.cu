// run: the functions that Python calls. They check the arguments, encode the TMA descriptors and launch the layer: one
// kernel for few tokens, four or six for many. Nothing here waits for the device.
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "check_inputs.cuh"
#include "check_routed_inputs.cuh"
#include "fused_layer.cuh"
#include "grouped_layer.cuh"
#include "quantise_tokens.cuh"

static void check_cuda(cudaError_t e, const char* what) {
  if (e != cudaSuccess) TVM_FFI_THROW(RuntimeError) << "hopper_fused: " << what << ": " << cudaGetErrorString(e);
}

using Encode = decltype(&cuTensorMapEncodeTiled);
static Encode encode_function() {
  static Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
               "looking up cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(entry);
  }();
  return encode;
}

static_assert(sizeof(FusedScratch) < (1u << 31), "offsets into the scratch are ints");
// Up to here h has two FP8 terms: the second one costs next to nothing while reading the weights bounds the time, which
// it does up to 32 rows per expert (1024 tokens at DeepSeek-V3's 8 of 256): measured.
constexpr int64_t kHiLoTokens = 32 * kNumExperts / kTopK;
// Up to here y has all columns. Above, gemm2 and combine run once for each half of them, to save memory.
constexpr int64_t kOnePassTokens = 8192;
constexpr int kColumnPasses = 2;
static_assert(kColumnPasses <= kMaxColumnPasses && kHidden % (kColumnPasses * 2 * kBlockN) == 0,
              "a column pass is whole pairs of gemm2's tiles");
// A CTA of route_permute has shared memory for its share of so many tokens.
constexpr int64_t kRouteTokens = (int64_t)kMaxRouteBatches * 32 * kMinSms;
constexpr int64_t kMaxTokens = kRouteTokens < 1 << 17 ? kRouteTokens : 1 << 17;
static_assert((kMaxTokens * kTopK + kNumLocalExperts * kRowAlign) / kRowAlign < 1 << (32 - kRowsBits),
              "a row fits a tile's entry");
static_assert(kMaxTokens / kRowAlign < 1 << kRowsBits, "an expert's rows fit a tile's entry");
static_assert(kMaxTokens * kHidden < (int64_t)1 << 32, "gemm1 addresses x with 32 bits");

// l2_promotion: bytes that L2 requests from memory. Boxes are 128 bytes wide; the faster value is measured.
template <int RANK>
static void encode_tensor_map(CUtensorMap* map, void* base, const cuuint64_t (&size)[RANK],
                              const cuuint64_t (&stride)[RANK], const cuuint32_t (&box)[RANK],
                              CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B) {
  cuuint32_t ones[RANK];
  for (auto& one : ones) one = 1;
  CUresult e = encode_function()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, RANK, base, size, stride + 1, box, ones,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 l2_promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "hopper_fused: cuTensorMapEncodeTiled failed with " << (int)e;
}

static ffi::Tensor allocate(DLDevice device, size_t bytes) {
  return ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({(int64_t)bytes}), DLDataType{kDLUInt, 8, 1},
                                   device);
}

// Scratch that the calls of a stream share. What stands before `fused.mask` is zero between calls.
struct Scratch {
  alignas(1024) Counters many;
  FusedScratch fused;
};
constexpr size_t kZeroedBytes = offsetof(Scratch, fused) + offsetof(FusedScratch, mask);

// Calls on one stream run in order and share its scratch, made at the stream's first call. A graph that is being
// captured gets its own, from the graph's memory pool, as it may be replayed while its stream runs: made and zeroed by
// the capture's first layer, shared by the others, and held until the stream's next capture.
struct StreamScratch {
  ffi::Tensor memory;
  // Held while a layer's kernels are launched: those of another host thread must not come in between.
  std::shared_ptr<std::mutex> launching;
  unsigned long long capture;  // its number, 0 for none
  Scratch* get() const { return static_cast<Scratch*>(memory.data_ptr()); }
};
static StreamScratch stream_scratch(DLDevice device, cudaStream_t stream) {
  static std::mutex lock;
  // Never freed: at exit, torch may be gone already.
  static auto* of_stream = new std::map<std::tuple<int, cudaStream_t, bool>, StreamScratch>;
  cudaStreamCaptureStatus status;
  unsigned long long capture = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
  if (status == cudaStreamCaptureStatusNone) capture = 0;
  const std::tuple<int, cudaStream_t, bool> key(device.device_id, stream, capture != 0);
  std::lock_guard<std::mutex> guard(lock);
  const auto found = of_stream->find(key);
  if (found != of_stream->end() && found->second.capture == capture) return found->second;
  const StreamScratch fresh = {allocate(device, sizeof(Scratch)), std::make_shared<std::mutex>(), capture};
  check_cuda(cudaMemsetAsync(fresh.memory.data_ptr(), 0, kZeroedBytes, stream), "zeroing the counters");
  of_stream->insert_or_assign(key, fresh);
  return fresh;
}

// Places arrays in one allocation, 256-byte aligned. With a null base it only counts the bytes.
struct BumpAllocator {
  uint8_t* base;
  size_t bytes = 0;
  template <class T>
  void allocate(T*& array, size_t count) {
    array = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 255) / 256 * 256;
  }
};

// Sets the pointers of the scratch arrays, for the most rows that so many tokens can have. Returns the bytes.
static size_t place_many_scratch(GroupedArgs& args, uint8_t* base, int h_split, int ctas) {
  const size_t tokens = args.num_tokens, pairs = tokens * std::min(kTopK, kNumLocalExperts);
  const size_t rows = pairs + std::min<size_t>(kNumLocalExperts, pairs) * (kRowAlign - 1);
  const size_t entries = rows / kBlockM + 2 * std::min<size_t>(kNumLocalExperts, pairs);  // for each pair of n_blocks
  BumpAllocator scratch{base};
  scratch.allocate(args.weight, tokens * kNumLocalExperts);
  scratch.allocate(args.token_rows, tokens * kMaxTokenRows);
  scratch.allocate(args.cta_rows, (size_t)ctas * kPaddedLocalExperts);
  scratch.allocate(args.queue1, entries * (kNumNBlocks1 / 2));
  scratch.allocate(args.queue2, entries * (args.y_columns / (2 * kBlockN)));
  scratch.allocate(args.row_weight, rows);
  scratch.allocate(args.row_token, rows);
  scratch.allocate(args.row_x_scale, rows * kNumKBlocks1);
  scratch.allocate(args.h_scale, rows * kNumKBlocks2);
  scratch.allocate(args.h, rows * kIntermediate * h_split);
  scratch.allocate(args.y, rows * args.y_columns);
  if (h_split == 2) scratch.allocate(args.y_scale, rows * (args.y_columns / kBlockK));
  return scratch.bytes;
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

// SMs of the current device. The first call for a device also does what is needed once: it prepares the kernels.
static int sm_count(int device) {
  static std::mutex lock;
  static auto* counts = new std::map<int, int>;
  std::lock_guard<std::mutex> guard(lock);
  int& known = (*counts)[device];
  if (known == 0) {
    int count = 0;
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "counting SMs");
    if (count < std::max(kMinSms, kGemm2Ctas))
      TVM_FFI_THROW(RuntimeError) << "hopper_fused: the device has " << count << " multiprocessors, want "
                                  << std::max(kMinSms, kGemm2Ctas) << " or more";
    check_cuda(prepare_fused_layer(), "asking for shared memory");
    check_cuda(prepare_route_permute(), "asking for shared memory");
    check_cuda(prepare_grouped_gemm1(), "asking for shared memory");
    check_cuda(prepare_grouped_gemm2(), "asking for shared memory");
    known = count;
  }
  return known;
}

// Launches the layer on the current stream of the device. many_h_split: FP8 parts of h above kHiLoTokens tokens.
static void launch_layer(const LayerArgs& layer, DLDevice device, ffi::TensorView w1, ffi::TensorView w2,
                         int64_t many_h_split) {
  const cuuint64_t hidden = kHidden, inter = kIntermediate;
  const int64_t t = layer.num_tokens;
  const DeviceGuard guard(device.device_id);
  const int sms = sm_count(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device.device_id));
  const StreamScratch kept = stream_scratch(device, stream);
  if (t <= kFusedMaxTokens) {
    TensorMaps maps;
    // W13 as [expert][group of 8 rows][half][row][K]: a box interleaves 8 rows of up with 8 of gate
    encode_tensor_map<5>(&maps.w1, w1.data_ptr(), {hidden, kAtomRows, 2, inter / kAtomRows, kNumLocalExperts},
                         {1, hidden, inter * hidden, kAtomRows * hidden, 2 * inter * hidden},
                         {kBlockK, kAtomRows, 2, kNBlockColumns / kAtomRows, 1});
    encode_tensor_map<2>(&maps.w2, w2.data_ptr(), {inter, kNumLocalExperts * hidden}, {1, inter}, {kBlockK, kColumnTile});
    const FusedArgs args = {layer, &kept.get()->fused};
    check_cuda(launch_fused_layer(maps, args, sms, stream), "launching fused_layer");
  } else {
    const int h_split = t <= kHiLoTokens ? 2 : (int)many_h_split;
    GroupedArgs args = {layer};
    args.counters = &kept.get()->many;
    args.clusters = sms / kClusterCtas;
    args.y_columns = kHidden / (t <= kOnePassTokens ? 1 : kColumnPasses);
    const ffi::Tensor scratch = allocate(device, place_many_scratch(args, nullptr, h_split, sms));
    place_many_scratch(args, static_cast<uint8_t*>(scratch.data_ptr()), h_split, sms);
    const std::lock_guard<std::mutex> launching(*kept.launching);
    check_cuda(launch_route_permute(args, sms, stream), "launching route_permute");
    CUtensorMap w1_map, w2_map;
    encode_tensor_map<5>(&w1_map, w1.data_ptr(), {hidden, kAtomRows, 2, inter / kAtomRows, kNumLocalExperts},
                         {1, hidden, inter * hidden, kAtomRows * hidden, 2 * inter * hidden},
                         {kBlockK, kAtomRows, 2, kBlockN / (kClusterCtas * 2 * kAtomRows), 1},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    encode_tensor_map<2>(&w2_map, w2.data_ptr(), {inter, kNumLocalExperts * hidden}, {1, inter},
                         {kBlockK, kBlockN / kClusterCtas});
    check_cuda(launch_grouped_gemm1(args, w1_map, h_split, stream), "launching grouped_gemm1");
    for (; args.first_column < kHidden; args.first_column += args.y_columns) {
      check_cuda(launch_grouped_gemm2(args, w2_map, h_split, stream), "launching grouped_gemm2");
      check_cuda(launch_combine(args, h_split, sms, stream), "launching combine");
    }
  }
}

static void check_tokens(const char* name, int64_t tokens) {
  if (tokens > kMaxTokens)
    TVM_FFI_THROW(ValueError) << name << ": got " << tokens << " tokens, want " << kMaxTokens << " or fewer";
}

// The interface is compiled in: interface.cuh.
static void check_form(bool routed, const char* other) {
  if (routed != kTopKGiven)
    TVM_FFI_THROW(RuntimeError) << "hopper_fused: built for the other interface: call " << other;
}

static void run_layer(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output, int64_t many_h_split) {
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
  launch_layer(layer, logits.device(), w1, w2, many_h_split);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer, run_layer);

// With renorm routing there is no bias (the logits stand in for it and are not read as such), and every expert is
// local.
static void run_renorm(
    ffi::TensorView logits, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1, ffi::TensorView w1_scale,
    ffi::TensorView w2, ffi::TensorView w2_scale, ffi::TensorView output, int64_t many_h_split) {
  run_layer(logits, logits, x, x_scale, w1, w1_scale, w2, w2_scale, 0, 1.0, output, many_h_split);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_renorm, run_renorm);

// Behind a router: checked arguments, with tokens in FP8.
static void launch_routed(
    const void* x, const void* x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output, int64_t many_h_split) {
  const LayerArgs layer = {
      {nullptr, nullptr, static_cast<const uint8_t*>(x), static_cast<const float*>(x_scale),
       static_cast<const float*>(w1_scale.data_ptr()), static_cast<const float*>(w2_scale.data_ptr()),
       static_cast<uint16_t*>(output.data_ptr()), (int)output.size(0), (int)local_expert_offset, 1.0f},
      static_cast<const int*>(topk_ids.data_ptr()), static_cast<const float*>(topk_weights.data_ptr())};
  launch_layer(layer, output.device(), w1, w2, many_h_split);
}

static void run_routed(
    ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView topk_ids, ffi::TensorView topk_weights,
    ffi::TensorView w1, ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale,
    int64_t local_expert_offset, ffi::TensorView output, int64_t many_h_split) {
  check_form(true, "run_layer");
  check_routed_inputs(x, &x_scale, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  if (x.size(0) == 0) return;
  check_tokens("hidden_states", x.size(0));
  launch_routed(x.data_ptr(), x_scale.data_ptr(), topk_ids, topk_weights, w1, w1_scale, w2, w2_scale,
                local_expert_offset, output, many_h_split);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed, run_routed);

// As run_routed, for tokens in bf16.
static void run_routed_bf16(
    ffi::TensorView x, ffi::TensorView topk_ids, ffi::TensorView topk_weights, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    ffi::TensorView output, int64_t many_h_split) {
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
  launch_routed(q, scales, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, local_expert_offset, output,
                many_h_split);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_routed_bf16, run_routed_bf16);
