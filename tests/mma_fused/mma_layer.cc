// Runs mma_fused's kernel on the host: mma_layer IN OUT CTAS TOKENS OFFSET FACTOR. IN: the layer's tensors, one after
// the other, each padded to 16 bytes. OUT: the output, h and h_scale of all rows. Prints how many split-K tiles there
// are. Exit status 1 if the counters are not zero again.
#include "fused_layer_on_host.cuh"

using namespace mma_fused;

static const uint8_t* take(const std::vector<uint8_t>& from, size_t& at, size_t bytes) {
  const uint8_t* found = from.data() + at;
  at += (bytes + 15) / 16 * 16;
  return found;
}

int main(int, char** arguments) {
  FILE* in = fopen(arguments[1], "rb");
  fseek(in, 0, SEEK_END);
  std::vector<uint8_t> bytes(ftell(in));
  rewind(in);
  if (fread(bytes.data(), 1, bytes.size(), in) != bytes.size()) return 1;
  const int ctas = atoi(arguments[3]), tokens = atoi(arguments[4]);
  const size_t inter = kIntermediate, hidden = kHidden, steps1 = kNumKBlocks1, steps2 = kNumKBlocks2;
  size_t at = 0;
  FusedArgs args = {};
  if constexpr (kTopKGiven) {
    args.topk_ids = reinterpret_cast<const int*>(take(bytes, at, (size_t)tokens * kTopK * 4));
    args.topk_weights = reinterpret_cast<const float*>(take(bytes, at, (size_t)tokens * kTopK * 4));
  } else {
    args.logits = take(bytes, at, (size_t)tokens * kNumExperts * (kRenorm ? 2 : 4));
    args.bias = reinterpret_cast<const uint16_t*>(take(bytes, at, kNumExperts * 2));
  }
  args.x = take(bytes, at, tokens * hidden);
  args.x_scale = reinterpret_cast<const float*>(take(bytes, at, steps1 * tokens * 4));
  const size_t weights = kNumLocalExperts * hidden * inter, blocks = kNumLocalExperts * steps1 * steps2;  // of W2
  const size_t scale_bytes = kMxfp4Weights ? weights / 32 : blocks * sizeof(float);
  args.w1 = take(bytes, at, 2 * weights / Config::kValuesPerByte);
  args.w1_scale = reinterpret_cast<const float*>(take(bytes, at, 2 * scale_bytes));
  args.w2 = take(bytes, at, weights / Config::kValuesPerByte);
  args.w2_scale = reinterpret_cast<const float*>(take(bytes, at, scale_bytes));
  if (at != bytes.size()) return fprintf(stderr, "IN has %zu bytes, want %zu\n", bytes.size(), at), 1;
  args.num_tokens = tokens;
  args.local_expert_offset = atoi(arguments[5]);
  args.routed_scaling_factor = atof(arguments[6]);
  std::vector<uint16_t> output(tokens * hidden, 0x7fff);
  args.output = output.data();
  args.scratch = static_cast<FusedScratch*>(aligned_alloc(256, sizeof(FusedScratch)));
  memset(static_cast<void*>(args.scratch), 0xff, sizeof(FusedScratch));  // NaN
  memset(static_cast<void*>(args.scratch), 0, offsetof(FusedScratch, mask));
  const size_t slabs = (size_t)ColumnTilePartition(ctas).max_local_tiles() * ctas;
  std::vector<float> sums(slabs * tokens * Config::kColumnTile, NAN);
  args.sums = sums.data();
  TensorMaps maps;
  maps.w1.base = args.w1, maps.w2.base = args.w2;
  run_grid(ctas, [&] { fused_layer(maps, args); });

  FILE* out = fopen(arguments[2], "wb");
  fwrite(output.data(), 2, output.size(), out);
  fwrite(args.scratch->h, 1, sizeof(args.scratch->h), out);
  fwrite(args.scratch->h_scale, 1, sizeof(args.scratch->h_scale), out);
  fclose(out);
  int splits = 0;
  for (const auto& sums : args.scratch->split_k_sums) splits += !std::isnan(sums[0][0][0].x);
  printf("%d\n", splits);
  const uint8_t* counters = reinterpret_cast<const uint8_t*>(args.scratch);
  const bool zero = std::all_of(counters, counters + offsetof(FusedScratch, mask), [](uint8_t b) { return b == 0; });
  return zero ? 0 : (fprintf(stderr, "counters are not zero after the launch\n"), 1);
}
