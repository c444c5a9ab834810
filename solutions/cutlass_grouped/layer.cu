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
#include <algorithm>

#include "common/cuda/host/check_cuda.cuh"
#include "cutlass_grouped/combine.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "common/cuda/host/launch_layer.cuh"
#include "cutlass_grouped/permute.cuh"
#include "common/cuda/host/scratch.cuh"
#include "cutlass_grouped/swiglu_quant.cuh"

const char kSolutionName[] = "cutlass_grouped";
const int64_t kTokenLimit = kMaxTokens, kQuantiseLimit = 0;

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

// options: addresses of the two GEMMs' tiles, from find_tile.
void launch_layer(const LayerArgs& layer, const Weights& weights, DLDevice device, ffi::PackedArgs options) {
  if (options.size() != 2)
    TVM_FFI_THROW(TypeError) << kSolutionName << ": got " << options.size() << " tiles, want 2";
  const auto& gemm1 = *reinterpret_cast<const GroupedGemm*>(options[0].cast<int64_t>());
  const auto& gemm2 = *reinterpret_cast<const GroupedGemm*>(options[1].cast<int64_t>());
  const DeviceGuard guard(device.device_id);
  int sms;
  check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device.device_id), "counting SMs");
  const cudaStream_t stream = current_stream(device);
  const int tokens = layer.num_tokens, most_rows = tokens * kMaxTokenRows, window = std::min(most_rows, kWindow);

  Args args = {layer, weights.w1, weights.w2};
  const size_t workspace1 = gemm1.workspace_bytes(kNumLocalExperts, sms);
  const size_t workspace2 = gemm2.workspace_bytes(kNumLocalExperts, sms);
  const size_t bytes = place_scratch(args.scratch, nullptr, tokens, window, workspace1, workspace2);
  const ffi::Tensor scratch = allocate(device, bytes);
  place_scratch(args.scratch, static_cast<uint8_t*>(scratch.data_ptr()), tokens, window, workspace1, workspace2);
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
    check_cuda(gemm1.launch(args.scratch.gemm1, args.scratch.workspace1, device.device_id, sms, stream),
               "launching gemm1");
    launch(swiglu_quant_kernel, dim3(std::min(8 * sms, window)), kSwigluThreads, args, true, stream,
           "launching swiglu_quant");
    check_cuda(gemm2.launch(args.scratch.gemm2, args.scratch.workspace2, device.device_id, sms, stream),
               "launching gemm2");
    // after the first window there are nearly always no rows
    const int combine_ctas = args.first_row == 0 ? tokens : std::min(tokens, 8 * sms);
    launch(combine_kernel, dim3(combine_ctas, parts), kCombineThreads, args, true, stream, "launching combine");
  }
}
