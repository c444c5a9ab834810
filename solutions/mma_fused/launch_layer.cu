// launch_layer: the layer in one launch, which binding.cu calls, and `quantise`, by which main.py quantises bf16 tokens
// ahead of its Triton kernels. Nothing here waits for the device.
#include "common/cuda/host/launch_layer.cuh"

#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "mma_fused/one_launch/fused_layer.cuh"
#include "common/cuda/tokens/quantise_tokens.cuh"
#include "common/cuda/host/scratch.cuh"
#include "common/cuda/host/sm_count.cuh"
#include "common/cuda/host/weight_maps.cuh"

using namespace mma_fused;

const char kSolutionName[] = "mma_fused";
const int64_t kTokenLimit = Config::kMaxTokens, kQuantiseLimit = 0;

// Empty without TMA: the kernel does not read them.
static TensorMaps tensor_maps(const FusedArgs& args) {
  TensorMaps maps = {};
  if constexpr (Config::kTma) {
    constexpr int kValues = Config::kValuesPerByte, kBox = Config::kTileRowBytes;
    constexpr auto kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    constexpr auto kSwizzle = CU_TENSOR_MAP_SWIZZLE_64B;  // of MXFP4's boxes
    encode_w1_map<kHidden / kValues, kBox>(&maps.w1, args.w1, Config::kNBlockColumns / 8, kPromotion, kSwizzle);
    encode_w2_map<kIntermediate / kValues, kBox>(&maps.w2, args.w2, Config::kWeightTileRows, kPromotion, kSwizzle);
  }
  return maps;
}

// Bytes of all CTAs' slabs of output sums (gemm2_combine.cuh), for kMaxTokens tokens.
static size_t sums_bytes(int ctas) {
  return (size_t)ColumnTilePartition(ctas).max_local_tiles() * ctas * Config::kMaxTokens * Config::kColumnTile *
         sizeof(float);
}

static void prepare(int device, int) {
  int smem = 0;
  check_cuda(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "asking for the size of shared memory");
  if (smem < (int)sizeof(Smem))
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": the device has " << smem << " bytes of shared memory for a "
                                << "block, want " << sizeof(Smem);
  check_cuda(prepare_fused_layer(), "asking for shared memory");
}

// options: CTAs of the launch, 0 for one per SM.
void launch_layer(const LayerArgs& layer, const Weights& weights, DLDevice device, ffi::PackedArgs options) {
  const DeviceGuard guard(device.device_id);
  const int sms = prepared_sm_count(device.device_id, prepare);
  const int64_t ctas = option(options, 0, 0);
  if (ctas < 0 || ctas > sms) TVM_FFI_THROW(ValueError) << "ctas: got " << ctas << ", want 0 to " << sms;
  const int grid = ctas == 0 ? sms : (int)ctas;
  const cudaStream_t stream = current_stream(device);
  const size_t bytes = sizeof(FusedScratch) + sums_bytes(grid);  // the sums come last
  with_stream_scratch(device, stream, bytes, kZeroedBytes, [&](void* memory) {
    auto* scratch = static_cast<FusedScratch*>(memory);
    const FusedArgs args = {layer, weights.w1, weights.w2, scratch, reinterpret_cast<float*>(scratch + 1)};
    check_cuda(launch_fused_layer(tensor_maps(args), args, grid, stream), "launching fused_layer");
  });
}

// x [T, H] bf16 -> q [T, H] fp8 and scales [T, H / 128], on the current stream; T >= 1. main.py has checked x and made
// the others.
static void quantise(ffi::TensorView x, ffi::TensorView q, ffi::TensorView scales) {
  const DeviceGuard guard(x.device().device_id);
  check_cuda(launch_quantise_tokens(x.data_ptr(), (int)x.size(0), static_cast<uint8_t*>(q.data_ptr()),
                                    static_cast<float*>(scales.data_ptr()), current_stream(x.device())),
             "launching quantise_tokens");
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(quantise, quantise);
