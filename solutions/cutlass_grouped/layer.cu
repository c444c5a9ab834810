// layer: the whole MoE layer from one call: five launches up to kFewTokens tokens, six above.
//
//   route         above kFewTokens tokens; below, permute does it
//   permute       permute.cuh        x and scales in expert order; addresses and sizes of both GEMMs
//   gemm1         sm90_*.cu          g = x . w1^T, bf16
//   swiglu_quant  swiglu_quant.cuh   h = swiglu(up, gate), FP8
//   gemm2         sm90_*.cu          y = h . w2^T, bf16, over x and g
//   combine       combine.cuh        output = sum of weight * y
//
// The host knows the number of tokens and nothing else, so sizes here are upper bounds and nothing waits.
//
// Not binding.cu, whose functions take one number of the solution's own: here these are two tiles.
#include <algorithm>

#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/check_inputs.cuh"
#include "cutlass_grouped/combine.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "cutlass_grouped/permute.cuh"
#include "common/cuda/host/scratch.cuh"
#include "cutlass_grouped/swiglu_quant.cuh"

const char kSolutionName[] = "cutlass_grouped";

// ---- scratch ----

static void place_table(GroupTable& table, BumpAllocator& scratch) {
  table.groups = kNumLocalExperts;
  scratch.allocate(table.problem, kNumLocalExperts);
  scratch.allocate(table.activations, kNumLocalExperts);
  scratch.allocate(table.weights, kNumLocalExperts);
  scratch.allocate(table.result, kNumLocalExperts);
  scratch.allocate(table.row_scale, kNumLocalExperts);
  scratch.allocate(table.block_scale, kNumLocalExperts);
  scratch.allocate(table.activations_stride, kNumLocalExperts);
  scratch.allocate(table.weights_stride, kNumLocalExperts);
  scratch.allocate(table.result_stride, kNumLocalExperts);
}

// Sets the pointers to scratch from base on. Returns the bytes.
static size_t place_scratch(Scratch& s, uint8_t* base, size_t tokens, size_t window, size_t workspace1,
                            size_t workspace2) {
  BumpAllocator scratch{base, 1024};
  place_table(s.gemm1, scratch);
  place_table(s.gemm2, scratch);
  scratch.allocate(s.num_rows, 2);
  uint8_t *bytes1, *bytes2;
  scratch.allocate(bytes1, workspace1), s.workspace1 = bytes1;
  scratch.allocate(bytes2, workspace2), s.workspace2 = bytes2;
  const size_t routed = tokens > kFewTokens ? tokens : 0;  // by a kernel of its own
  scratch.allocate(s.column, (routed + kChunk - 1) / kChunk * kPaddedLocalExperts);
  scratch.allocate(s.weight, routed * kNumLocalExperts);
  scratch.allocate(s.pair, tokens * kTopK);
  scratch.allocate(s.expert_rows, window);
  scratch.allocate(s.h, window * kIntermediate);
  scratch.allocate(s.h_scale, window * kNumKBlocks2);
  scratch.allocate(s.x, window * kHidden);
  scratch.allocate(s.x_scale, window * kNumKBlocks1);
  scratch.allocate(s.g, window * kRowBytesG / sizeof(*s.g));
  s.y = reinterpret_cast<uint16_t*>(s.x);
  return scratch.bytes;
}

// ---- launches ----

template <class Kernel>
static void launch(Kernel* kernel, dim3 grid, int threads, const Args& args, bool with_pdl, cudaStream_t stream,
                   const char* what) {
  cudaLaunchAttribute attribute = pdl_attribute();
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = with_pdl ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args), what);
}

// The layer on the current stream of the tensors' device, with tiles for the two GEMMs: addresses from
// find_tile.
static void run_layer(
    ffi::TensorView logits, ffi::TensorView bias, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1,
    ffi::TensorView w1_scale, ffi::TensorView w2, ffi::TensorView w2_scale, int64_t local_expert_offset,
    double routed_scaling_factor, ffi::TensorView output, int64_t tile1, int64_t tile2) {
  check_inputs(logits, bias, x, &x_scale, w1, w1_scale, w2, w2_scale, local_expert_offset, output);
  const int64_t t = logits.size(0);
  if (t == 0) return;
  if (t > kMaxTokens)
    TVM_FFI_THROW(ValueError) << "routing_logits: got " << t << " tokens, want " << kMaxTokens << " or fewer";
  const auto& gemm1 = *reinterpret_cast<const GroupedGemm*>(tile1);
  const auto& gemm2 = *reinterpret_cast<const GroupedGemm*>(tile2);
  const int device = logits.device().device_id;
  const DeviceGuard guard(device);
  int sms;
  check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "counting SMs");
  const cudaStream_t stream = current_stream(logits.device());
  const int tokens = (int)t, most_rows = tokens * kMaxTokenRows, window = std::min(most_rows, kWindow);

  Args args = {};
  const size_t workspace1 = gemm1.workspace_bytes(kNumLocalExperts, sms);
  const size_t workspace2 = gemm2.workspace_bytes(kNumLocalExperts, sms);
  const size_t bytes = place_scratch(args.scratch, nullptr, tokens, window, workspace1, workspace2);
  const ffi::Tensor scratch = allocate(logits.device(), bytes);
  place_scratch(args.scratch, static_cast<uint8_t*>(scratch.data_ptr()), tokens, window, workspace1, workspace2);
  args.logits = logits.data_ptr();
  args.bias = static_cast<const uint16_t*>(bias.data_ptr());
  args.x = static_cast<const uint8_t*>(x.data_ptr());
  args.x_scale = static_cast<const float*>(x_scale.data_ptr());
  args.w1 = static_cast<const uint8_t*>(w1.data_ptr());
  args.w1_scale = static_cast<const float*>(w1_scale.data_ptr());
  args.w2 = static_cast<const uint8_t*>(w2.data_ptr());
  args.w2_scale = static_cast<const float*>(w2_scale.data_ptr());
  args.output = static_cast<uint16_t*>(output.data_ptr());
  args.num_tokens = tokens;
  args.local_expert_offset = (int)local_expert_offset;
  args.routed_scaling_factor = (float)routed_scaling_factor;
  args.window = window;
  args.swap_ab1 = gemm1.swap_ab;
  args.swap_ab2 = gemm2.swap_ab;
  args.scales_by_row = gemm1.scales_by_row;

  const bool few = tokens <= kFewTokens;
  const int chunks = (tokens + kChunk - 1) / kChunk;
  const dim3 permute_grid(chunks, permute_slices(chunks));
  const int parts = tokens <= 1024 ? kCombineVectors / kCombineThreads : 1;
  if (!few) launch(route_kernel, dim3(chunks), kPermuteThreads, args, false, stream, "launching route");
  for (; args.first_row < most_rows; args.first_row += window) {
    const auto permute = few ? permute_kernel<true> : permute_kernel<false>;
    launch(permute, permute_grid, kPermuteThreads, args, !few, stream, "launching permute");
    check_cuda(gemm1.launch(args.scratch.gemm1, args.scratch.workspace1, device, sms, stream), "launching gemm1");
    launch(swiglu_quant_kernel, dim3(std::min(8 * sms, window)), kSwigluThreads, args, true, stream,
           "launching swiglu_quant");
    check_cuda(gemm2.launch(args.scratch.gemm2, args.scratch.workspace2, device, sms, stream), "launching gemm2");
    // after the first window there are nearly always no rows
    const int combine_ctas = args.first_row == 0 ? tokens : std::min(tokens, 8 * sms);
    launch(combine_kernel, dim3(combine_ctas, parts), kCombineThreads, args, true, stream, "launching combine");
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_layer, run_layer);

// With renorm routing there is no bias (the logits stand in for it and are not read as such), and every expert is
// local.
static void run_renorm(
    ffi::TensorView logits, ffi::TensorView x, ffi::TensorView x_scale, ffi::TensorView w1, ffi::TensorView w1_scale,
    ffi::TensorView w2, ffi::TensorView w2_scale, ffi::TensorView output, int64_t tile1, int64_t tile2) {
  run_layer(logits, logits, x, x_scale, w1, w1_scale, w2, w2_scale, 0, 1.0, output, tile1, tile2);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_renorm, run_renorm);
