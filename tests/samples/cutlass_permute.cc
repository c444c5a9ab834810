// Runs cutlass_grouped's routing and permutation on the host, CTA by CTA.
//
//   permute TOKENS OFFSET FACTOR WINDOW SWAP_AB SCALES_BY_ROW    WINDOW: rows in scratch at once
//
// Reads from stdin, without gaps: logits, bias (not with renorm routing), x, x_scale. Writes to stdout, without gaps:
// for each window num_rows[2]; for each GEMM its problems (int32), then the groups' offsets of five pointers and their
// three strides (int64); expert_rows, x and x_scale of the window's rows. At the end the pairs.
#include <cuda_runtime.h>

#undef __shared__
#define __shared__ static
#define asm  // the only PTX here is that of programmatic dependent launch
#define volatile(...)
#include "permute.cuh"
#undef asm

template <class T>
static std::vector<T> input(size_t count) {
  std::vector<T> values(count);
  if (fread(values.data(), sizeof(T), count, stdin) != count) abort();
  return values;
}
template <class T>
static void output(const T* values, size_t count) {
  fwrite(values, sizeof(T), count, stdout);
}

// Arrays of a group table, and what is written of it.
struct HostTable {
  std::vector<int> problem = std::vector<int>(3 * kNumLocalExperts);
  std::vector<const void*> activations{kNumLocalExperts}, weights{kNumLocalExperts};
  std::vector<void*> result{kNumLocalExperts};
  std::vector<const float*> row_scale{kNumLocalExperts}, block_scale{kNumLocalExperts};
  std::vector<int64_t> strides = std::vector<int64_t>(3 * kNumLocalExperts);

  GroupTable table() {
    return {kNumLocalExperts, reinterpret_cast<int(*)[3]>(problem.data()), activations.data(), weights.data(), result.data(),
            row_scale.data(), block_scale.data(), &strides[0], &strides[kNumLocalExperts], &strides[2 * kNumLocalExperts]};
  }
  void write(const void* x, const void* w, const void* y, const void* x_scale, const void* w_scale) const {
    const auto offsets = [](const auto& pointers, const void* base) {
      for (auto p : pointers) {
        const int64_t offset = reinterpret_cast<intptr_t>(p) - reinterpret_cast<intptr_t>(base);
        output(&offset, 1);
      }
    };
    output(problem.data(), problem.size());
    offsets(activations, x), offsets(weights, w), offsets(result, y);
    offsets(row_scale, x_scale), offsets(block_scale, w_scale);
    output(strides.data(), strides.size());
  }
};

int main(int, char** arguments) {
  const int tokens = atoi(arguments[1]), window = atoi(arguments[4]);
  const auto logits = input<uint8_t>((size_t)tokens * kNumExperts * (kRenorm ? 2 : 4));
  const auto bias = input<uint16_t>(kRenorm ? 0 : kNumExperts);
  const auto x = input<uint8_t>((size_t)tokens * kHidden);
  const auto x_scale = input<float>((size_t)tokens * kNumKBlocks1);
  const int chunks = (tokens + kChunk - 1) / kChunk, most_rows = tokens * kMaxTokenRows;
  std::vector<uint32_t> column((size_t)chunks * kPaddedLocalExperts);
  std::vector<float> weight((size_t)tokens * kNumLocalExperts);
  std::vector<Pair> pair((size_t)tokens * kTopK);
  std::vector<ExpertRows> expert_rows(window);
  std::vector<uint8_t> rows_x((size_t)window * kHidden);
  std::vector<float> rows_scale((size_t)window * kNumKBlocks1);
  int num_rows[2] = {-1, -1};
  HostTable gemm1, gemm2;
  const auto address = [](intptr_t at) { return reinterpret_cast<uint8_t*>(at << 40); };  // that nobody reads

  Args args = {};
  args.logits = logits.data(), args.bias = bias.data(), args.x = x.data(), args.x_scale = x_scale.data();
  args.w1 = address(1), args.w2 = address(2);
  args.w1_scale = (const float*)address(3), args.w2_scale = (const float*)address(4);
  args.num_tokens = tokens, args.local_expert_offset = atoi(arguments[2]);
  args.routed_scaling_factor = atof(arguments[3]);
  args.window = window;
  args.swap_ab1 = args.swap_ab2 = atoi(arguments[5]);
  args.scales_by_row = atoi(arguments[6]);
  Scratch& s = args.scratch;
  s.column = column.data(), s.weight = weight.data(), s.pair = pair.data(), s.num_rows = num_rows;
  s.expert_rows = expert_rows.data(), s.gemm1 = gemm1.table(), s.gemm2 = gemm2.table();
  s.x = rows_x.data(), s.x_scale = rows_scale.data();
  s.g = (uint16_t*)address(5), s.h = address(6), s.h_scale = (float*)address(7), s.y = (uint16_t*)address(8);

  const bool few = tokens <= kFewTokens;
  gridDim = dim3(chunks);
  for (blockIdx.x = 0; !few && blockIdx.x < gridDim.x; blockIdx.x++)
    run_cta(kPermuteThreads, [&] { route_kernel(args); });
  gridDim = dim3(chunks, permute_slices(chunks));
  for (; args.first_row < most_rows; args.first_row += window) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        run_cta(kPermuteThreads, [&] { few ? permute_kernel<true>(args) : permute_kernel<false>(args); });
    output(num_rows, 2);
    gemm1.write(s.x, args.w1, s.g, s.x_scale, args.w1_scale);
    gemm2.write(s.h, args.w2, s.y, s.h_scale, args.w2_scale);
    output(expert_rows.data(), num_rows[0]);
    output(rows_x.data(), (size_t)num_rows[0] * kHidden);
    output(rows_scale.data(), (size_t)num_rows[0] * kNumKBlocks1);
  }
  output(pair.data(), pair.size());
}
