// launch_layer: launches the layer. With few tokens it is one kernel, with many four, or six where gemm2 and combine
// run twice. With MXFP4 weights there are more (mxfp4/launch_gemms.cuh). Nothing here waits for the device.
#include "common/cuda/host/launch_layer.cuh"

#include <algorithm>

#include "hopper_fused/few_tokens/mxfp4/add_rows.cuh"
#include "common/cuda/host/check_cuda.cuh"
#include "common/cuda/host/device_guard.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/mxfp4/launch_gemms.cuh"
#include "hopper_fused/regimes.cuh"
#include "common/cuda/host/scratch.cuh"
#include "common/cuda/host/sm_count.cuh"
#include "common/cuda/host/weight_maps.cuh"
#include "hopper_fused/few_tokens/all_reduce/open_peers.cuh"

using namespace hopper_fused;

const char kSolutionName[] = "hopper_fused";

static_assert(sizeof(FusedScratch) < (1u << 31), "offsets into the scratch are ints");
// Up to so many tokens h is split in two FP8 terms, hi and lo. lo costs next to nothing while reading the weights
// bounds the time: measured, up to 32 rows per expert (1024 tokens at DeepSeek-V3's 8 of 256).
constexpr int64_t kHiLoTokens = 32 * kNumExperts / kTopK;
// Up to so many tokens y has all columns. Above, gemm2 and combine run kColumnPasses times, each for a part of the
// columns, to save memory.
constexpr int64_t kOnePassTokens = 8192;
// The most tokens of which a CTA of route_permute has room for its share in shared memory.
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

// Scratch that the calls of a stream share. All that stands before `fused.mask` is zero between calls,
// but for the second set of counters, which queue_unusual sets to zero first.
struct Scratch {
  alignas(1024) Counters grouped[kCounterSets];
  FusedScratch fused;
};
constexpr size_t kFusedOffset = round_up(sizeof(Scratch::grouped), alignof(FusedScratch));
constexpr size_t kZeroedBytes = kFusedOffset + offsetof(RoutingScratch, mask);

// Returns the most rows, with padding, that so many tokens can have.
static size_t most_rows(size_t tokens) {
  const size_t pairs = tokens * kMaxTokenExperts;
  return pairs + std::min<size_t>(kNumLocalExperts, pairs) * (Grouped::kRowAlign - 1);
}

// Sets args' pointers to its scratch arrays, one after another from `base` on, for the most rows that args.num_tokens
// can have. Returns their bytes, also with a null `base`.
static size_t place_grouped_scratch(GroupedArgs& args, uint8_t* base, int h_split, int ctas) {
  const size_t tokens = args.num_tokens, pairs = tokens * kMaxTokenExperts, rows = most_rows(tokens);
  // per pair of n_blocks
  const size_t entries = rows / Grouped::kBlockM + 2 * std::min<size_t>(kNumLocalExperts, pairs);
  BumpAllocator scratch{base};
  scratch.allocate(args.weight, tokens * kNumLocalExperts);
  scratch.allocate(args.token_rows, tokens * kMaxTokenRows);
  scratch.allocate(args.cta_rows, (size_t)ctas * kPaddedLocalExperts);
  scratch.allocate(args.queue1, entries * (Grouped::kNumNBlocks1 / (Grouped::kOddNBlocks ? 1 : 2)));
  scratch.allocate(args.queue2, entries * (args.y_columns / (2 * Grouped::kBlockN)));
  scratch.allocate(args.row_weight, rows);
  scratch.allocate(args.row_token, rows);
  scratch.allocate(args.row_x_scale, rows * kNumKBlocks1);
  scratch.allocate(args.h_scale, rows * Grouped::kNumNBlocks1);
  scratch.allocate(args.h, rows * Grouped::kPaddedIntermediate * h_split);
  if (kMxfp4Weights) {
    uint8_t* ordered;  // x in order of K, see k_order.cuh
    scratch.allocate(ordered, tokens * kHidden);
    args.x = ordered;
  }
  scratch.allocate(args.y, rows * args.y_columns);
  if (h_split == 2) scratch.allocate(args.y_scale, rows * (args.y_columns / kBlockK));
  return scratch.bytes;
}

// ---- the GEMMs for many tokens ----

// Encodes what gemm2 loads and stores by TMA: W2, and y in builds whose Gemm2Maps is WeightAndResultMaps.
inline void encode_gemm2_maps(CUtensorMap* w2_map, const void* w2, const GroupedArgs&) {
  encode_w2_map(w2_map, w2, Grouped::kW2BoxRows);
}
inline void encode_gemm2_maps(WeightAndResultMaps* maps, const void* w2, const GroupedArgs& args) {
  encode_w2_map(&maps->w2, w2, Grouped::kW2BoxRows);
  const cuuint64_t row_bytes = args.y_columns * sizeof(*args.y);
  encode_tensor_map<2>(&maps->y, args.y, {row_bytes, most_rows(args.num_tokens)}, {1, row_bytes},
                       {kAtomRowBytes, kWarpRows});
}

// Both GEMMs with FP8 weights, and their TMA descriptors. A box is what a CTA loads, or stores, at a time.
class Fp8Gemms {
 public:
  static cudaError_t prepare() {
    const cudaError_t error = prepare_gemm1();
    return error != cudaSuccess ? error : prepare_grouped_gemm2();
  }

  Fp8Gemms(const Weights& weights, const GroupedArgs& args, int h_split) {
    encode_gemm1_map(&w1_map_, weights.w1, args, h_split);
    encode_gemm2_maps(&gemm2_maps_, weights.w2, args);
  }

  // From x to h.
  void launch_first(const GroupedArgs& args, const uint8_t*, int h_split, cudaStream_t stream) const {
    check_cuda(launch_gemm1(args, w1_map_, h_split, stream), "launching gemm1");
  }
  // From h to y, for a column pass.
  void launch_second(const GroupedArgs& args, int h_split, cudaStream_t stream) const {
    check_cuda(launch_grouped_gemm2(args, gemm2_maps_, h_split, stream), "launching gemm2");
  }

 private:
  CUtensorMap w1_map_;
  Gemm2Maps gemm2_maps_;
};

using Gemms = std::conditional_t<kMxfp4Weights, Mxfp4Gemms, Fp8Gemms>;

// Before the first launch on a device: refuses a device with too few SMs, and lets the kernels have their shared
// memory.
static void prepare(int, int sms) {
  if (sms < std::max(kMinSms, Config::kGemm2Ctas))
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": the device has " << sms << " multiprocessors, want "
                                << std::max(kMinSms, Config::kGemm2Ctas) << " or more";
  check_cuda(prepare_fused_layer(), "asking for shared memory");
  check_cuda(prepare_route_permute(), "asking for shared memory");
  check_cuda(Gemms::prepare(), "asking for shared memory");
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

// ---- many tokens ----

// The TMA descriptors are encoded before anything is launched, so that an error there leaves nothing half done.
static void launch_many_tokens(const LayerArgs& layer, DLDevice device, const Weights& weights, Counters* counters,
                               int h_split, int sms, cudaStream_t stream) {
  GroupedArgs args = {layer};
  args.counters = counters;
  args.clusters = sms / Grouped::kClusterCtas;
  args.y_columns = y_columns_of(layer.num_tokens <= kOnePassTokens ? 1 : Grouped::kColumnPasses);

  const ffi::Tensor scratch = allocate(device, place_grouped_scratch(args, nullptr, h_split, sms));
  place_grouped_scratch(args, static_cast<uint8_t*>(scratch.data_ptr()), h_split, sms);

  const Gemms gemms(weights, args, h_split);
  check_cuda(launch_route_permute(args, sms, stream), "launching route_permute");
  gemms.launch_first(args, layer.x, h_split, stream);
  for (; args.first_column < kHidden; args.first_column += args.y_columns) {
    gemms.launch_second(args, h_split, stream);
    check_cuda(launch_combine(args, h_split, sms, stream), "launching combine");
  }
}

// ---- few tokens with MXFP4 weights ----

static_assert(!kMxfp4Weights || (kTopKGiven && kScalesRowMajor), "tokens are rows everywhere");

// Above kSumTokens tokens the one launch stores rows, and a second kernel adds them up.
static void launch_few_tokens_mxfp4(const LayerArgs& layer, DLDevice device, const void* w1, const void* w2,
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

// options: first, in how many FP8 terms h is split above kHiLoTokens tokens, 1 or 2. Second, what open_peers()
// returned, if the one launch shall sum the output over ranks.
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
      if (kOneLaunch && t <= Config::kMaxTokens)
        return launch_few_tokens_mxfp4(layer, device, weights.w1, weights.w2, &kept->fused, sms, stream);
    } else if (kOneLaunch && t <= (peers ? Config::kMaxTokens : Config::kOneLaunchTokens)) {
      return launch_few_tokens(layer, weights.w1, weights.w2, peers, &kept->fused, sms, stream);
    }
    launch_many_tokens(layer, device, weights, kept->grouped, h_split, sms, stream);
  });
}
