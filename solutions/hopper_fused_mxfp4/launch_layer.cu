// launch_layer: the layer with MXFP4 weights as one or two kernels for few tokens, as five or seven for more, as eight or
// twelve for many. Nothing here waits for the device.
#include "common/cuda/host/launch_layer.cuh"

#include <algorithm>

#include "hopper_fused/few_tokens/mxfp4/add_rows.cuh"
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/order_tokens.cuh"
#include "hopper_fused/regimes.cuh"
#include "common/cuda/host/scratch.cuh"
#include "common/cuda/host/sm_count.cuh"
#include "common/cuda/host/weight_maps.cuh"
#include "hopper_fused/few_tokens/all_reduce/open_peers.cuh"
#include "hopper_fused_mxfp4/many_tokens/converted/unusual.cuh"

using namespace hopper_fused;

const char kSolutionName[] = "hopper_fused_mxfp4";

static_assert(sizeof(FusedScratch) < (1u << 31), "offsets into the scratch are ints");
// Up to here h is split in hi and lo in FP8: lo costs next to nothing while reading the weights bounds the time, which
// it does up to 32 rows per expert (1024 tokens at DeepSeek-V3's 8 of 256): measured.
constexpr int64_t kHiLoTokens = 32 * kNumExperts / kTopK;
// From here on, in rows per expert on average, weights are converted in shared memory: measured.
constexpr int64_t kConvertedRows = 32;
constexpr int64_t kConvertedTokens = kConvertedRows * kNumExperts / kTopK;
// Up to here y has all columns. Above, gemm2 and combine run kColumnPasses times, to save memory.
constexpr int64_t kOnePassTokens = 8192;
// A CTA of route_permute has shared memory for its share of so many tokens.
constexpr int64_t kRouteTokens = (int64_t)Grouped::kMaxRouteBatches * 32 * kMinSms;
constexpr int64_t kMaxTokens = kRouteTokens < 1 << 17 ? kRouteTokens : 1 << 17;
static_assert((kMaxTokens * kMaxTokenExperts + kNumLocalExperts * Grouped::kRowAlign) / Grouped::kRowAlign <
                  1 << (32 - kRowsBits),
              "a row fits a tile's entry");
static_assert(kMaxTokens / Grouped::kRowAlign < 1 << kRowsBits &&
                  kMaxTokens / Grouped::kClusterM < 1 << (32 - kMFirstShift),
              "an expert's rows fit a tile's entry");
static_assert(kMaxTokens * kHidden < (int64_t)1 << 32, "gemm1 addresses x with 32 bits");
const int64_t kTokenLimit = kMaxTokens, kQuantiseLimit = kOneLaunch ? Config::kQuantiseTokens : 0;

// What the calls of a stream share. What stands before `fused.mask` is zero between calls.
struct Scratch {
  alignas(1024) Counters grouped;
  FusedScratch fused;
};
constexpr size_t kFusedOffset = round_up(sizeof(Counters), alignof(FusedScratch));
constexpr size_t kZeroedBytes = kFusedOffset + offsetof(RoutingScratch, mask);

// Rows of all experts, with padding.
static size_t most_rows(size_t tokens) {
  const size_t pairs = tokens * kMaxTokenExperts;
  return pairs + std::min<size_t>(kNumLocalExperts, pairs) * (Grouped::kRowAlign - 1);
}

// behind: counters of mxfp4_gemm1 and mxfp4_gemm2 where they come behind the converting GEMMs, see unusual.cuh.
struct ManyTokens {
  GroupedArgs args;
  Counters* behind;
};

// Sets the pointers of the scratch arrays, for the most rows that so many tokens can have. Returns the bytes.
static size_t place_grouped_scratch(ManyTokens& many, uint8_t* base, int h_split, int ctas) {
  GroupedArgs& args = many.args;
  const size_t tokens = args.num_tokens, pairs = tokens * kMaxTokenExperts, rows = most_rows(tokens);
  // per pair of n_blocks
  const size_t entries = rows / Grouped::kBlockM + 2 * std::min<size_t>(kNumLocalExperts, pairs);
  BumpAllocator scratch{base};
  scratch.allocate(args.weight, tokens * kNumLocalExperts);
  scratch.allocate(args.token_rows, tokens * kMaxTokenRows);
  scratch.allocate(args.cta_rows, (size_t)ctas * kPaddedLocalExperts);
  scratch.allocate(args.queue1, entries * (Grouped::kNumNBlocks1 / 2));
  scratch.allocate(args.queue2, entries * (args.y_columns / (2 * Grouped::kBlockN)));
  scratch.allocate(args.row_weight, rows);
  scratch.allocate(args.row_token, rows);
  scratch.allocate(args.row_x_scale, rows * kNumKBlocks1);
  scratch.allocate(args.h_scale, rows * Grouped::kNumNBlocks1);
  scratch.allocate(args.h, rows * Grouped::kPaddedIntermediate * h_split);
  uint8_t* ordered;  // x in order of K, see k_order.cuh
  scratch.allocate(ordered, tokens * kHidden);
  args.x = ordered;
  scratch.allocate(many.behind, 1);
  scratch.allocate(args.y, rows * args.y_columns);
  if (h_split == 2) scratch.allocate(args.y_scale, rows * (args.y_columns / kBlockK));
  return scratch.bytes;
}

static void prepare(int, int sms) {
  if (sms < std::max(kMinSms, Config::kGemm2Ctas))
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": the device has " << sms << " multiprocessors, want "
                                << std::max(kMinSms, Config::kGemm2Ctas) << " or more";
  check_cuda(prepare_fused_layer(), "asking for shared memory");
  check_cuda(prepare_route_permute(), "asking for shared memory");
  check_cuda(prepare_converted_gemm1(), "asking for shared memory");
  check_cuda(prepare_converted_gemm2(), "asking for shared memory");
  check_cuda(prepare_mxfp4_gemm1(), "asking for shared memory");
  check_cuda(prepare_mxfp4_gemm2(), "asking for shared memory");
}

// Boxes of half of a tile's K block, swizzled for the converters.
struct ManyTokensMaps {
  CUtensorMap w1, w2;
};
static ManyTokensMaps encode_maps(const void* w1, const void* w2, CUtensorMapSwizzle swizzle) {
  constexpr int kBox = kBlockK / 2;  // bytes of a K block
  constexpr auto kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  ManyTokensMaps maps;
  encode_w1_map<kHidden / 2, kBox>(&maps.w1, w1, Grouped::kW1BoxGroups, kPromotion, swizzle);
  encode_w2_map<kIntermediate / 2, kBox>(&maps.w2, w2, Grouped::kW2BoxRows, kPromotion, swizzle);
  return maps;
}

static void launch_gemm1(const GroupedArgs& args, const ManyTokensMaps& maps, int h_split, cudaStream_t stream) {
  check_cuda(launch_mxfp4_gemm1(args, maps.w1, h_split, stream), "launching mxfp4_gemm1");
}
static void launch_gemm2(const GroupedArgs& args, const ManyTokensMaps& maps, int h_split, cudaStream_t stream) {
  check_cuda(launch_mxfp4_gemm2(args, maps.w2, h_split, stream), "launching mxfp4_gemm2");
}

// The TMA descriptors are encoded before anything is launched: what fails there leaves nothing half done.
static void launch_many_tokens(const LayerArgs& layer, DLDevice device, const void* w1, const void* w2,
                               Counters* counters, int h_split, int sms, cudaStream_t stream) {
  ManyTokens many = {{layer}};
  GroupedArgs& args = many.args;
  args.counters = counters;
  args.clusters = sms / Grouped::kClusterCtas;
  args.y_columns = y_columns_of(layer.num_tokens <= kOnePassTokens ? 1 : Grouped::kColumnPasses);
  const ffi::Tensor scratch = allocate(device, place_grouped_scratch(many, nullptr, h_split, sms));
  place_grouped_scratch(many, static_cast<uint8_t*>(scratch.data_ptr()), h_split, sms);
  const bool converted = layer.num_tokens >= kConvertedTokens;
  const ManyTokensMaps maps = encode_maps(w1, w2, CU_TENSOR_MAP_SWIZZLE_NONE);
  const ManyTokensMaps converted_maps = encode_maps(w1, w2, CU_TENSOR_MAP_SWIZZLE_64B);

  check_cuda(launch_route_permute(args, sms, stream), "launching route_permute");
  check_cuda(launch_order_tokens(layer.x, const_cast<uint8_t*>(args.x), layer.num_tokens, stream),
             "launching order_tokens");
  if (converted)
    check_cuda(launch_converted_gemm1(args, converted_maps.w1, h_split, stream), "launching converted_gemm1");
  else
    launch_gemm1(args, maps, h_split, stream);

  for (; args.first_column < kHidden; args.first_column += args.y_columns) {
    if (converted) {
      check_cuda(launch_converted_gemm2(args, converted_maps.w2, h_split, stream), "launching converted_gemm2");
      check_cuda(launch_queue_unusual(args, many.behind, stream), "launching queue_unusual");
      GroupedArgs behind = args;
      behind.counters = many.behind;
      if (args.first_column == 0) launch_gemm1(behind, maps, h_split, stream);
      launch_gemm2(behind, maps, h_split, stream);
    } else {
      launch_gemm2(args, maps, h_split, stream);
    }
    check_cuda(launch_combine(args, h_split, sms, stream), "launching combine");
  }
}

// ---- few tokens ----

static_assert(kMxfp4Weights && kTopKGiven && kScalesRowMajor, "MXFP4 weights, and tokens are rows everywhere");

// Above kSumTokens tokens the one launch stores rows, and a second kernel adds them up.
static void launch_few_tokens(const LayerArgs& layer, DLDevice device, const void* w1, const void* w2,
                              FusedScratch* scratch, int sms, cudaStream_t stream) {
  TensorMaps maps;
  encode_w1_map<kHidden / Config::kStepBlocks>(&maps.w1, w1, Config::kNBlockColumns / kAtomRows);
  encode_w2_map<kIntermediate / Config::kStepBlocks>(&maps.w2, w2, Config::kColumnTile);
  FusedArgs args = {layer, scratch};
  ffi::Tensor rows;
  if (layer.num_tokens > Config::kSumTokens) {
    const size_t y_bytes = (size_t)rows_of(layer.num_tokens) * kHidden * sizeof(float);
    rows = allocate(device, y_bytes + (size_t)layer.num_tokens * kTopK * sizeof(int));
    args.y = static_cast<float*>(rows.data_ptr());
    args.token_rows = reinterpret_cast<int*>(static_cast<uint8_t*>(rows.data_ptr()) + y_bytes);
  }
  check_cuda(launch_fused_layer(maps, args, sms, stream), "launching fused_layer");
  if (args.y) check_cuda(launch_add_rows(args, sms, stream), "launching add_rows");
}

// ---- the layer ----

// options: FP8 parts of h above kHiLoTokens tokens, 1 or 2; and that there are no peers.
void launch_layer(const LayerArgs& layer, const Weights& weights, DLDevice device, ffi::PackedArgs options) {
  const int64_t t = layer.num_tokens, many_h_split = option(options, 0, 0);
  if (many_h_split != 1 && many_h_split != 2)
    TVM_FFI_THROW(ValueError) << "many_h_split: got " << many_h_split << ", want 1 or 2";
  if (peers_of(option(options, 1, kNoPeers)))
    TVM_FFI_THROW(ValueError) << "output: got ranks to sum over, want none with MXFP4 weights";
  const int h_split = t <= kHiLoTokens ? 2 : (int)many_h_split;
  const DeviceGuard guard(device.device_id);
  const int sms = prepared_sm_count(device.device_id, prepare);
  const cudaStream_t stream = current_stream(device);
  with_stream_scratch(device, stream, sizeof(Scratch), kZeroedBytes, [&](void* memory) {
    auto* kept = static_cast<Scratch*>(memory);
    if (kOneLaunch && t <= Config::kMaxTokens)
      return launch_few_tokens(layer, device, weights.w1, weights.w2, &kept->fused, sms, stream);
    launch_many_tokens(layer, device, weights.w1, weights.w2, &kept->grouped, h_split, sms, stream);
  });
}
