// A test build of hopper_fused: launch_layer.cu, with launches in between that fill the scratch with NaN before the
// layer and copy it before it is freed. The kernels' own files are compiled beside it, unchanged.
//
// Where the one launch keeps a stage's result in shared memory, kernels below compute it with the solution's functions:
// the tokens' masks and weights where every CTA routes all tokens or takes the caller's ids, and the row lists.
#include "fused_layer.cuh"
#include "grouped_layer.cuh"
#include "permute.cuh"
#include "token_experts.cuh"

using namespace hopper_fused;

static cudaError_t poison_and_launch_route(const GroupedArgs& args, int ctas, cudaStream_t stream);
static cudaError_t read_out_and_launch_combine(const GroupedArgs& args, int h_split, int sms, cudaStream_t stream);
static cudaError_t launch_fused_and_read_out(const TensorMaps& maps, const FusedArgs& args, int ctas,
                                             cudaStream_t stream);
#define launch_route_permute poison_and_launch_route
#define launch_combine read_out_and_launch_combine
#define launch_fused_layer launch_fused_and_read_out
#include "launch_layer_cu.cuh"  // launch_layer.cu, under a name that is not compiled by itself
#undef launch_route_permute
#undef launch_combine
#undef launch_fused_layer

// Of the last layer: arrays as bytes, and numbers.
static std::map<std::string, ffi::Tensor>& arrays = *new std::map<std::string, ffi::Tensor>;
static std::map<std::string, int64_t>& numbers = *new std::map<std::string, int64_t>;

static void* fresh_array(const std::string& name, size_t bytes) {
  int device;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  const ffi::Tensor array = allocate({kDLCUDA, device}, bytes);
  arrays[name] = array;
  return array.data_ptr();
}

static void copy_out(const std::string& name, const void* from, size_t bytes, cudaStream_t stream) {
  void* to = fresh_array(name, bytes);
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying scratch");
}

// ---- many tokens ----

// The queues' entries as the GEMMs read them, for both CTAs of a cluster: [entry][rank][7].
// words_of_cta: whether an entry has two words for each CTA, as gemm1's have with kOddNBlocks.
__global__ void unpack_queue(
    const uint2* queue, const Counters* counters, int n_block_pairs, bool words_of_cta, int* tiles) {
  const int of_pair = counters->queues.long_entries + counters->queues.short_entries, singles = counters->singles;
  const int entries =
      words_of_cta ? gemm1_entries(of_pair - singles) + gemm1_entries(singles) : of_pair * n_block_pairs;
  for (int i = threadIdx.x; i < entries * Grouped::kClusterCtas; i += blockDim.x) {
    const WorkTile tile =
        unpack_tile(queue[words_of_cta ? i : i / Grouped::kClusterCtas], i % Grouped::kClusterCtas);
    const int fields[] = {tile.expert,       tile.n_block,     tile.m_first, tile.m_rows,
                          tile.expert_first, tile.expert_rows, tile.normal};
    for (int f = 0; f < 7; f++) tiles[7 * i + f] = fields[f];
  }
}

static cudaError_t poison_and_launch_route(const GroupedArgs& args, int ctas, cudaStream_t stream) {
  arrays.clear();
  for (int h_split : {1, 2}) {  // the layer does not pass it on: it follows from where y lies
    GroupedArgs placed = args;
    const size_t bytes = place_grouped_scratch(placed, reinterpret_cast<uint8_t*>(args.weight), h_split, ctas);
    if (placed.y != args.y) continue;
    check_cuda(cudaMemsetAsync(args.weight, 0xff, bytes, stream), "filling the scratch with NaN");
    numbers["h_split"] = h_split;
    return launch_route_permute(args, ctas, stream);
  }
  return cudaErrorInvalidValue;  // the scratch is not laid out as by place_grouped_scratch
}

static void copy_queue(const std::string& name, const uint2* queue, const GroupedArgs& args, int n_block_pairs,
                       size_t most, cudaStream_t stream, bool words_of_cta = false) {
  const size_t bytes = most * n_block_pairs * Grouped::kClusterCtas * 7 * sizeof(int);
  void* tiles = fresh_array(name, bytes);
  check_cuda(cudaMemsetAsync(tiles, 0xff, bytes, stream), "marking tiles that do not exist");
  unpack_queue<<<1, 1024, 0, stream>>>(queue, args.counters, n_block_pairs, words_of_cta, static_cast<int*>(tiles));
  check_cuda(cudaGetLastError(), "launching unpack_queue");
}

static cudaError_t read_out_and_launch_combine(const GroupedArgs& args, int h_split, int sms, cudaStream_t stream) {
  const size_t tokens = args.num_tokens, pairs = tokens * std::min(kTopK, kNumLocalExperts);
  // as in place_grouped_scratch
  const size_t rows = pairs + std::min<size_t>(kNumLocalExperts, pairs) * (Grouped::kRowAlign - 1);
  const size_t entries = rows / Grouped::kBlockM + 2 * std::min<size_t>(kNumLocalExperts, pairs);
  const std::string pass = std::to_string(args.first_column);
  copy_out("y" + pass, args.y, rows * args.y_columns * sizeof(*args.y), stream);
  if (h_split == 2) copy_out("y_scale" + pass, args.y_scale, rows * (args.y_columns / kBlockK) * sizeof(float), stream);
  if (args.first_column == 0) {
    copy_out("queues", &args.counters->queues, sizeof(TileQueues), stream);
    copy_queue("tiles1", args.queue1, args, Grouped::kNumNBlocks1 / 2, entries, stream, Grouped::kOddNBlocks);
    copy_queue("tiles2", args.queue2, args, args.y_columns / (2 * Grouped::kBlockN), entries, stream);
    copy_out("weight", args.weight, tokens * kNumLocalExperts * sizeof(float), stream);
    copy_out("token_rows", args.token_rows, tokens * kMaxTokenRows * sizeof(int), stream);
    copy_out("row_weight", args.row_weight, rows * sizeof(float), stream);
    copy_out("row_token", args.row_token, rows * sizeof(int), stream);
    copy_out("x_scale", args.row_x_scale, rows * kNumKBlocks1 * sizeof(float), stream);
    copy_out("h", args.h, rows * Grouped::kPaddedIntermediate * numbers["h_split"], stream);
    copy_out("h_scale", args.h_scale, rows * Grouped::kNumNBlocks1 * sizeof(float), stream);
  }
  return launch_combine(args, h_split, sms, stream);
}

// ---- few tokens ----

__global__ void route_tokens(const FusedArgs args) {
  const int t = blockIdx.x;
  token_experts(args, t, &args.scratch->mask[t / 32 * kPaddedLocalExperts + t % 32], 32, args.scratch->weight[t]);
}

struct RowLists {
  uint16_t token[Config::kMaxRows];
  MBlock m_block[Config::kMaxMBlocks];
  int num_m_blocks, num_rows;
};

__global__ void __launch_bounds__(Config::kThreads, 1) permute_tokens(const FusedArgs args, RowLists* lists) {
  extern __shared__ __align__(1024) uint8_t smem_base[];
  FusedSmem& s = *reinterpret_cast<FusedSmem*>(smem_base);
  if constexpr (kTopKGiven) {
    mark_tokens(s, args);
  } else {
    for (int i = threadIdx.x; i < (args.num_tokens + 31) / 32 * kPaddedLocalExperts; i += Config::kThreads)
      s.mask[i] = args.scratch->mask[i];
    __syncthreads();
  }
  permute(s, args);
  for (int i = threadIdx.x; i < s.num_rows; i += Config::kThreads) lists->token[i] = s.token[i];
  for (int i = threadIdx.x; i < s.num_m_blocks; i += Config::kThreads) lists->m_block[i] = s.m_block[i];
  if (threadIdx.x == 0) lists->num_m_blocks = s.num_m_blocks, lists->num_rows = s.num_rows;
}

static cudaError_t launch_fused_and_read_out(const TensorMaps& maps, const FusedArgs& args, int ctas,
                                             cudaStream_t stream) {
  arrays.clear();
  FusedScratch& scratch = *args.scratch;
  uint8_t* from_mask = reinterpret_cast<uint8_t*>(args.scratch) + offsetof(RoutingScratch, mask);
  check_cuda(cudaMemsetAsync(from_mask, 0xff, sizeof(FusedScratch) - offsetof(RoutingScratch, mask), stream),
             "filling the scratch with NaN");
  if (const cudaError_t error = launch_fused_layer(maps, args, ctas, stream)) return error;
  if (kTopKGiven || args.num_tokens <= Config::kRouteAllTokens) route_tokens<<<args.num_tokens, kWarp, 0, stream>>>(args);
  RowLists* lists = static_cast<RowLists*>(fresh_array("lists", sizeof(RowLists)));
  check_cuda(
      cudaFuncSetAttribute(permute_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FusedSmem)),
      "asking for shared memory");
  permute_tokens<<<1, Config::kThreads, sizeof(FusedSmem), stream>>>(args, lists);
  check_cuda(cudaGetLastError(), "launching permute_tokens");
  copy_out("token", lists->token, sizeof(lists->token), stream);
  copy_out("m_blocks", lists->m_block, sizeof(lists->m_block), stream);
  copy_out("list_sizes", &lists->num_m_blocks, 2 * sizeof(int), stream);
  copy_out("mask", scratch.mask, sizeof(scratch.mask), stream);
  copy_out("weight", scratch.weight, sizeof(scratch.weight), stream);
  copy_out("x", scratch.x, sizeof(scratch.x), stream);
  copy_out("x_scale", scratch.x_scale, sizeof(scratch.x_scale), stream);
  copy_out("h", scratch.h, sizeof(scratch.h), stream);
  copy_out("h_scale", scratch.h_scale, sizeof(scratch.h_scale), stream);
  if (Config::kCtasPerColumnTile > 1)
    copy_out("partial", scratch.partial(0, 0), sizeof(Partials<Config::kCtasPerColumnTile>), stream);
  numbers["h_split"] = 2;
  return cudaSuccess;
}

// ---- what Python calls ----

static ffi::Map<ffi::String, ffi::Tensor> read_arrays() {
  ffi::Map<ffi::String, ffi::Tensor> found;
  for (const auto& [name, array] : arrays) found.Set(name, array);
  return found;
}

static ffi::Map<ffi::String, int64_t> read_numbers() {
  ffi::Map<ffi::String, int64_t> found;
  for (const auto& [name, number] : numbers) found.Set(name, number);
  found.Set("few_tokens", Config::kMaxTokens);
  found.Set("bypass_tokens", Config::kBypassTokens);
  found.Set("ctas_per_column_tile", Config::kCtasPerColumnTile);
  return found;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_arrays, read_arrays);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(read_numbers, read_numbers);
