// fused_layer: the whole MoE layer in one launch, for up to kMaxTokens tokens.
//
//   all warps      route tokens (all of them, or this block's share and a grid barrier), then sort rows by expert
//   warps 8, 9     load.cuh: keep the ring of K steps full
//   warps 0 to 7   gather this block's share of the rows, grid barrier, gemm1_swiglu_quant.cuh on this block's units, grid barrier, gemm2_combine.cuh on its columns
//
// The grid barriers cannot deadlock: the launch is cooperative, so either all blocks are resident or none runs, and
// every wait is for an arrival that its block makes without waiting for anything later.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "gemm2_combine.cuh"
#include "load.cuh"
#include "permute.cuh"
#include "route.cuh"

// What the consumer threads wrote becomes visible to all blocks. Their barrier puts the writes before one thread's
// release; whoever reads them by bulk copy fences between its acquire and the copy.
__device__ __forceinline__ void publish(unsigned* counter) {
  bar_sync(kBarConsumers, kConsumers);
  if (threadIdx.x == 0) {
    __threadfence();
    arrive_grid(counter);
  }
}

__global__ void __launch_bounds__(kThreads, 1) fused_layer(const __grid_constant__ Maps maps, const Args a) {
  extern __shared__ uint8_t smem_base[];
  Smem& s = *reinterpret_cast<Smem*>(smem_base + (1024 - smem_addr(smem_base) % 1024) % 1024);
  const int warp = threadIdx.x / 32;
  const bool few = a.num_tokens <= kSmemOutTokens, all_route = a.num_tokens <= kFewTokens;
  uint32_t* mask = few ? s.rows.few.mask : s.rows.many.mask;
  uint16_t* token = few ? s.rows.few.token : s.rows.many.token;

  prefetch_tokens(a);
  if (threadIdx.x == kThreads - 1) {
    prefetch_map(&maps.x);
    prefetch_map(&maps.w1);
    prefetch_map(&maps.w2);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; i++) {
      mbar_init(&s.full[i], 2);  // weights, activations
      mbar_init(&s.empty[i], kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  if (few)
    for (int i = threadIdx.x; i < a.num_tokens * kK1; i += kThreads) s.rows.few.x_scale[i] = __ldg(a.x_scale + i);
  if (all_route) {
    if (warp < a.num_tokens) route_token(a, warp, &mask[warp], s.rows.few.weight[warp]);
    __syncthreads();
  } else {
    for (int t = blockIdx.x + gridDim.x * warp; t < a.num_tokens; t += gridDim.x * (kThreads / 32))
      route_token(a, t, &a.scratch->mask[t], a.scratch->weight[t]);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      arrive_grid(&a.scratch->counters[kRouted]);
      wait_grid(&a.scratch->counters[kRouted]);
    }
    __syncthreads();
    for (int t = threadIdx.x; t < a.num_tokens; t += kThreads) mask[t] = __ldcg(&a.scratch->mask[t]);
    __syncthreads();
  }
  permute(s, mask, token, a.num_tokens);

  const bool in_gemm2 = blockIdx.x < kHidden / kColumns;
  if (warp >= kConsumers / 32) {
    registers_down<40>();
    if (warp == kConsumers / 32) {
      bar_sync(kBarRowsRead, kConsumers + 32);
      if (threadIdx.x % 32 == 0) load_weights(s, maps, in_gemm2);
    }
    if (threadIdx.x == kConsumers + 32) load_activations(s, maps, a, in_gemm2);
  } else {
    registers_up<232>();
    Ring ring;
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    gather_rows(s, a, token);
    publish(&a.scratch->counters[kGathered]);
    gemm1_swiglu_quant(s, a, ring, warpgroup);
    publish(&a.scratch->counters[kActivated]);
    if (in_gemm2) gemm2_combine(s, a, ring, warpgroup);

    // the last block to finish leaves the counters as it found them; gemm2 is over, so nobody reads them any more
    bar_sync(kBarConsumers, kConsumers);
    if (threadIdx.x == 0 && atomicAdd(&a.scratch->counters[kFinished], 1) == gridDim.x - 1)
      for (int i = kRouted; i <= kFinished; i++) a.scratch->counters[i] = 0;
  }
}

// ---- host ----

namespace ffi = tvm::ffi;

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

static_assert(sizeof(Scratch) < (1u << 31), "offsets into the scratch are ints");
static_assert(sizeof(Smem) + 1024 <= 227 * 1024, "a block may have 227 KB of shared memory");

template <int RANK>
static void tensor_map(CUtensorMap* map, void* base, const cuuint64_t (&size)[RANK],
                       const cuuint64_t (&stride)[RANK], const cuuint32_t (&box)[RANK]) {
  cuuint32_t ones[RANK];
  for (auto& one : ones) one = 1;
  CUresult e = encode_function()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, RANK, base, size, stride + 1, box, ones,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "hopper_fused: cuTensorMapEncodeTiled failed with " << (int)e;
}

// One argument of the layer: what the definition says it is.
struct Want {
  const char* name;
  DLDataType dtype;
  int rank;
  int64_t size[3];
};
constexpr DLDataType kFp32 = {kDLFloat, 32, 1}, kBf16 = {kDLBfloat, 16, 1}, kFp8 = {kDLFloat8_e4m3fn, 8, 1};

static std::string listed(int count, const int64_t* values) {
  std::string text = "[";
  for (int i = 0; i < count; i++) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

static std::string described(DLDataType dtype, int rank, const int64_t* size) {
  return "torch." + std::string(ffi::DLDataTypeToString(dtype)) + " of shape " + listed(rank, size);
}

static std::string named(DLDevice device) {
  return device.device_type == kDLCUDA ? "cuda:" + std::to_string(device.device_id) : "another kind of device";
}

static void check(const ffi::TensorView& t, const Want& want, const ffi::TensorView& first) {
  bool same = t.dtype().code == want.dtype.code && t.dtype().bits == want.dtype.bits && t.ndim() == want.rank;
  for (int i = 0; same && i < want.rank; i++) same = t.size(i) == want.size[i];
  if (!same)
    TVM_FFI_THROW(ValueError) << want.name << ": got " << described(t.dtype(), t.ndim(), t.shape().data()) << ", want "
                              << described(want.dtype, want.rank, want.size);
  if (first.device().device_type != kDLCUDA || t.device().device_type != kDLCUDA ||
      t.device().device_id != first.device().device_id)
    TVM_FFI_THROW(ValueError) << want.name << ": is on " << named(t.device()) << ", want a CUDA device, "
                              << named(first.device()) << " as routing_logits";
  if (!t.IsContiguous())
    TVM_FFI_THROW(ValueError) << want.name << ": has strides " << listed(t.ndim(), t.strides().data())
                              << ", want a contiguous tensor";
  if (reinterpret_cast<uintptr_t>(t.data_ptr()) % 16)
    TVM_FFI_THROW(ValueError) << want.name << ": starts at an address that is not a multiple of 16 bytes";
}

// Checks all arguments of the layer. Raises ValueError naming the argument, what it is and what is wanted.
static void check_inputs(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output) {
  const int64_t t = logits.ndim() > 0 ? logits.size(0) : 0;
  check(logits, {"routing_logits", kFp32, 2, {t, kExperts}}, logits);
  check(bias, {"routing_bias", kBf16, 1, {kExperts}}, logits);
  check(x, {"hidden_states", kFp8, 2, {t, kHidden}}, logits);
  check(x_scale, {"hidden_states_scale", kFp32, 2, {kK1, t}}, logits);
  check(w1, {"gemm1_weights", kFp8, 3, {kLocal, 2 * kInter, kHidden}}, logits);
  check(w1_scale, {"gemm1_weights_scale", kFp32, 3, {kLocal, 2 * kInter / kBlock, kK1}}, logits);
  check(w2, {"gemm2_weights", kFp8, 3, {kLocal, kHidden, kInter}}, logits);
  check(w2_scale, {"gemm2_weights_scale", kFp32, 3, {kLocal, kK1, kK2}}, logits);
  check(output, {"output", kBf16, 2, {t, kHidden}}, logits);
  if (local_expert_offset < 0 || local_expert_offset > kExperts - kLocal)
    TVM_FFI_THROW(ValueError) << "local_expert_offset: got " << local_expert_offset << ", want 0 to "
                              << kExperts - kLocal;
}

// Scratch for one call. Calls on a stream follow each other and share one, made when the stream is first seen; a graph
// that is being captured gets its own, from the graph's pool, as it may be replayed beside its stream.
static ffi::Tensor scratch_of(DLDevice device, cudaStream_t stream) {
  static std::mutex lock;
  static auto* kept = new std::map<std::pair<int, cudaStream_t>, ffi::Tensor>;  // never freed: torch may be gone by then
  cudaStreamCaptureStatus capture;
  check_cuda(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is captured");
  const std::pair<int, cudaStream_t> key(device.device_id, stream);
  std::lock_guard<std::mutex> guard(lock);
  if (capture == cudaStreamCaptureStatusNone) {
    auto found = kept->find(key);
    if (found != kept->end()) return found->second;
  }
  ffi::Tensor fresh = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({(int64_t)sizeof(Scratch)}),
                                                DLDataType{kDLUInt, 8, 1}, device);
  check_cuda(cudaMemsetAsync(fresh.data_ptr(), 0, sizeof(Scratch::counters), stream), "zeroing the counters");
  if (capture == cudaStreamCaptureStatusNone) kept->emplace(key, fresh);
  return fresh;
}

// The layer for up to kMaxTokens tokens, on the current stream of the tensors' device. Returns whether it served the
// call; with more tokens it has checked the arguments and launched nothing.
static bool run_fused(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output) {
  check_inputs(logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, local_expert_offset, routed_scaling_factor,
               output);
  const cuuint64_t h = kHidden, i = kInter;
  const int64_t t = logits.size(0);
  const int device = logits.device().device_id;
  if (t > kMaxTokens) return false;
  if (t == 0) return true;
  Maps maps;
  tensor_map<2>(&maps.x, x.data_ptr(), {h, (cuuint64_t)t}, {1, h}, {kBlock, 1});
  tensor_map<5>(&maps.w1, w1.data_ptr(), {h, 8, 2, i / 8, kLocal}, {1, h, i * h, 8 * h, 2 * i * h},
                {kBlock, 8, 2, kUnit / 8, 1});
  tensor_map<2>(&maps.w2, w2.data_ptr(), {i, kLocal * h}, {1, i}, {kBlock, kColumns});
  int current;
  check_cuda(cudaGetDevice(&current), "asking for the current device");
  if (current != device) check_cuda(cudaSetDevice(device), "choosing the tensors' device");
  static int blocks[64] = {};
  if (blocks[device] == 0) {
    check_cuda(cudaFuncSetAttribute(fused_layer, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem) + 1024),
               "asking for shared memory");
    int multiprocessors = 0;
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "counting SMs");
    if (multiprocessors < kHidden / kColumns)
      TVM_FFI_THROW(RuntimeError) << "hopper_fused: the device has " << multiprocessors << " multiprocessors, want "
                                  << kHidden / kColumns << " or more";
    blocks[device] = multiprocessors;
  }
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, device));
  const ffi::Tensor scratch = scratch_of(logits.device(), stream);
  Args args = {
      static_cast<const float*>(logits.data_ptr()),   static_cast<const uint16_t*>(bias.data_ptr()),
      static_cast<const uint8_t*>(x.data_ptr()),      static_cast<const float*>(x_scale.data_ptr()),
      static_cast<const float*>(w1_scale.data_ptr()), static_cast<const float*>(w2_scale.data_ptr()),
      static_cast<uint16_t*>(output.data_ptr()),      static_cast<Scratch*>(scratch.data_ptr()),
      (int)t, (int)local_expert_offset, (float)routed_scaling_factor};
  void* parameters[] = {&maps, &args};
  check_cuda(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(fused_layer), dim3(blocks[device]), dim3(kThreads),
                                         parameters, sizeof(Smem) + 1024, stream),
             "launching fused_layer");
  if (current != device) check_cuda(cudaSetDevice(current), "returning to the current device");
  return true;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_fused, run_fused);
