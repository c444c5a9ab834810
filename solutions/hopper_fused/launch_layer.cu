// launch_layer: the layer as one kernel for few tokens, as four or six for many. Nothing here waits for the device.
#include "common/cuda/host/launch_layer.cuh"

#include <algorithm>

#include "hopper_fused/few_tokens/mxfp4/add_rows.cuh"
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4_to_fp8.cuh"
#include "hopper_fused/regimes.cuh"
#include "common/cuda/host/scratch.cuh"
#include "common/cuda/host/sm_count.cuh"
#include "common/cuda/host/weight_maps.cuh"
#include "hopper_fused/few_tokens/all_reduce/open_peers.cuh"

const char kSolutionName[] = "hopper_fused";

static_assert(sizeof(FusedScratch) < (1u << 31), "offsets into the scratch are ints");
// Up to here h is split in hi and lo in FP8: lo costs next to nothing while reading the weights bounds the time, which
// it does up to 32 rows per expert (1024 tokens at DeepSeek-V3's 8 of 256): measured.
constexpr int64_t kHiLoTokens = 32 * kNumExperts / kTopK;
// Up to here y has all columns. Above, gemm2 and combine run kColumnPasses times, to save memory.
constexpr int64_t kOnePassTokens = 8192;
// A CTA of route_permute has shared memory for its share of so many tokens.
constexpr int64_t kRouteTokens = (int64_t)kMaxRouteBatches * 32 * kMinSms;
constexpr int64_t kMaxTokens = kRouteTokens < 1 << 17 ? kRouteTokens : 1 << 17;
static_assert((kMaxTokens * kMaxTokenExperts + kNumLocalExperts * kRowAlign) / kRowAlign < 1 << (32 - kRowsBits),
              "a row fits a tile's entry");
static_assert(kMaxTokens / kRowAlign < 1 << kRowsBits && kMaxTokens / kClusterM < 1 << (32 - kMFirstShift),
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

// Sets the pointers of the scratch arrays, for the most rows that so many tokens can have. Returns the bytes.
static size_t place_grouped_scratch(GroupedArgs& args, uint8_t* base, int h_split, int ctas) {
  const size_t tokens = args.num_tokens, pairs = tokens * kMaxTokenExperts;
  const size_t rows = pairs + std::min<size_t>(kNumLocalExperts, pairs) * (kRowAlign - 1);
  const size_t entries = rows / kBlockM + 2 * std::min<size_t>(kNumLocalExperts, pairs);  // per pair of n_blocks
  BumpAllocator scratch{base};
  scratch.allocate(args.weight, tokens * kNumLocalExperts);
  scratch.allocate(args.token_rows, tokens * kMaxTokenRows);
  scratch.allocate(args.cta_rows, (size_t)ctas * kPaddedLocalExperts);
  scratch.allocate(args.queue1, entries * (kNumNBlocks1 / 2));
  scratch.allocate(args.queue2, entries * (args.y_columns / (2 * kBlockN)));
  scratch.allocate(args.row_weight, rows);
  scratch.allocate(args.row_token, rows);
  scratch.allocate(args.row_x_scale, rows * kNumKBlocks1);
  scratch.allocate(args.h_scale, rows * kNumNBlocks1);
  scratch.allocate(args.h, rows * kGroupedIntermediate * h_split);
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
  check_cuda(prepare_gemm1(), "asking for shared memory");
  check_cuda(prepare_grouped_gemm2(), "asking for shared memory");
}

// peers: null, or the ranks that the output is summed over.
static void launch_few_tokens(const LayerArgs& layer, const void* w1, const void* w2, const Peers* peers,
                              FusedScratch* scratch, int sms, cudaStream_t stream) {
  TensorMaps maps;
  encode_w1_map(&maps.w1, w1, Config::kNBlockColumns / kAtomRows);
  encode_w2_map(&maps.w2, w2, Config::kColumnTile);
  const FusedArgs args = {layer, scratch};
  check_cuda(peers ? launch_reduced_layer(maps, {args, *peers}, sms, stream)
                   : launch_fused_layer(maps, args, sms, stream),
             "launching fused_layer");
}

// The TMA descriptors are encoded before anything is launched: what fails there leaves nothing half done.
static void launch_many_tokens(const LayerArgs& layer, DLDevice device, const void* w1, const void* w2,
                               Counters* counters, int h_split, int sms, cudaStream_t stream) {
  GroupedArgs args = {layer};
  args.counters = counters;
  args.clusters = sms / kClusterCtas;
  args.y_columns = y_columns_of(layer.num_tokens <= kOnePassTokens ? 1 : kColumnPasses);
  const ffi::Tensor scratch = allocate(device, place_grouped_scratch(args, nullptr, h_split, sms));
  place_grouped_scratch(args, static_cast<uint8_t*>(scratch.data_ptr()), h_split, sms);
  CUtensorMap w1_map, w2_map;
  encode_gemm1_map(&w1_map, w1, args, h_split);
  encode_w2_map(&w2_map, w2, kBlockN / kClusterCtas);
  check_cuda(launch_route_permute(args, sms, stream), "launching route_permute");
  check_cuda(launch_gemm1(args, w1_map, h_split, stream), "launching gemm1");
  for (; args.first_column < kHidden; args.first_column += args.y_columns) {
    check_cuda(launch_grouped_gemm2(args, w2_map, h_split, stream), "launching grouped_gemm2");
    check_cuda(launch_combine(args, h_split, sms, stream), "launching combine");
  }
}

// ---- MXFP4 weights ----

// From so many tokens on the weights are converted to FP8 first, for the kernels for many tokens: measured.
constexpr int kConvertTokens = 4 * Config::kMaxTokens + 1;
static_assert(!kMxfp4Weights || (kTopKGiven && kScalesRowMajor), "launch_in_batches: tokens are rows everywhere");

// The one launch for as many tokens as it takes, then for the next ones: batches, each of which reads its experts'
// weights. only_if: see FusedArgs.
static void launch_in_batches(LayerArgs layer, DLDevice device, const void* w1, const void* w2, FusedScratch* scratch,
                              int sms, cudaStream_t stream, const unsigned* only_if) {
  TensorMaps maps;
  encode_w1_map<kHidden / Config::kStepBlocks>(&maps.w1, w1, Config::kNBlockColumns / kAtomRows);
  encode_w2_map<kIntermediate / Config::kStepBlocks>(&maps.w2, w2, Config::kColumnTile);
  const int tokens = layer.num_tokens, batches = (tokens + Config::kMaxTokens - 1) / Config::kMaxTokens;
  const int batch = (tokens + batches - 1) / batches;
  const bool stores_y = batch > Config::kSumTokens;
  const size_t y_bytes = (size_t)rows_of(batch) * kHidden * sizeof(float);
  ffi::Tensor rows;
  if (stores_y) rows = allocate(device, y_bytes + (size_t)batch * kTopK * sizeof(int));

  for (int first = 0; first < tokens; first += batch) {
    FusedArgs args = {layer, scratch, only_if};
    args.num_tokens = std::min(batch, tokens - first);
    args.x += (size_t)first * kHidden;
    args.x_scale += (size_t)first * kNumKBlocks1;
    args.topk_ids += (size_t)first * kTopK;
    args.topk_weights += (size_t)first * kTopK;
    args.output += (size_t)first * kHidden;
    if (stores_y) {
      args.y = static_cast<float*>(rows.data_ptr());
      args.token_rows = reinterpret_cast<int*>(static_cast<uint8_t*>(rows.data_ptr()) + y_bytes);
    }
    check_cuda(launch_fused_layer(maps, args, sms, stream), "launching fused_layer");
    if (stores_y) check_cuda(launch_add_rows(args, sms, stream), "launching add_rows");
  }
}

// The kernels for many tokens, on weights that are converted here. Where some cannot be, which only the device knows,
// their output is overwritten by batches of the one launch; these end at once otherwise.
static void launch_converted(const LayerArgs& layer, DLDevice device, const void* w1, const void* w2, Scratch* kept,
                             int h_split, int sms, cudaStream_t stream) {
  constexpr int kRows1 = kNumLocalExperts * 2 * kIntermediate, kRows2 = kNumLocalExperts * kHidden;
  Mxfp4Matrix first = {static_cast<const uint8_t*>(w1), reinterpret_cast<const uint8_t*>(layer.w1_scale)};
  Mxfp4Matrix second = {static_cast<const uint8_t*>(w2), reinterpret_cast<const uint8_t*>(layer.w2_scale)};
  unsigned* out_of_range = nullptr;
  first.rows = kRows1, first.k = kHidden;
  second.rows = kRows2, second.k = kIntermediate;
  const auto place = [&](uint8_t* base) {
    BumpAllocator scratch{base};
    scratch.allocate(first.fp8, (size_t)kRows1 * kHidden);
    scratch.allocate(second.fp8, (size_t)kRows2 * kIntermediate);
    scratch.allocate(first.fp8_scales, (size_t)kRows1 / kBlockK * kNumKBlocks1);
    scratch.allocate(second.fp8_scales, (size_t)kRows2 / kBlockK * kNumKBlocks2);
    scratch.allocate(out_of_range, 1);
    return scratch.bytes;
  };
  const ffi::Tensor scratch = allocate(device, place(nullptr));
  place(static_cast<uint8_t*>(scratch.data_ptr()));

  check_cuda(cudaMemsetAsync(out_of_range, 0, sizeof(unsigned), stream), "zeroing a flag");
  check_cuda(launch_mxfp4_to_fp8(first, out_of_range, sms, stream), "launching mxfp4_to_fp8");
  check_cuda(launch_mxfp4_to_fp8(second, out_of_range, sms, stream), "launching mxfp4_to_fp8");
  LayerArgs converted = layer;
  converted.w1_scale = first.fp8_scales;
  converted.w2_scale = second.fp8_scales;
  launch_many_tokens(converted, device, first.fp8, second.fp8, &kept->grouped, h_split, sms, stream);
  launch_in_batches(layer, device, w1, w2, &kept->fused, sms, stream, out_of_range);
}

// ---- the layer ----

// options: FP8 parts of h above kHiLoTokens tokens, 1 or 2; and what open_peers() has returned, if the output of one
// launch is summed over ranks.
void launch_layer(const LayerArgs& layer, const Weights& weights, DLDevice device, ffi::PackedArgs options) {
  const int64_t t = layer.num_tokens, many_h_split = option(options, 0, 0);
  if (many_h_split != 1 && many_h_split != 2)
    TVM_FFI_THROW(ValueError) << "many_h_split: got " << many_h_split << ", want 1 or 2";
  const Peers* peers = peers_of(option(options, 1, kNoPeers));
  constexpr int kMaxSummed = kOneLaunch && !kMxfp4Weights ? Config::kMaxTokens : 0;
  if (peers && t > kMaxSummed)
    TVM_FFI_THROW(ValueError) << "output: got " << t << " tokens to sum over the ranks, want " << kMaxSummed
                              << " or fewer";
  const int h_split = t <= kHiLoTokens ? 2 : (int)many_h_split;
  const DeviceGuard guard(device.device_id);
  const int sms = prepared_sm_count(device.device_id, prepare);
  const cudaStream_t stream = current_stream(device);
  with_stream_scratch(device, stream, sizeof(Scratch), kZeroedBytes, [&](void* memory) {
    auto* kept = static_cast<Scratch*>(memory);
    if constexpr (kMxfp4Weights) {
      if (t >= kConvertTokens)
        launch_converted(layer, device, weights.w1, weights.w2, kept, h_split, sms, stream);
      else launch_in_batches(layer, device, weights.w1, weights.w2, &kept->fused, sms, stream, nullptr);
    } else if (kOneLaunch && t <= Config::kMaxTokens) {
      launch_few_tokens(layer, weights.w1, weights.w2, peers, &kept->fused, sms, stream);
    } else {
      launch_many_tokens(layer, device, weights.w1, weights.w2, &kept->grouped, h_split, sms, stream);
    }
  });
}
