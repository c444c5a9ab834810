// Runs on the host what hopper_fused makes of a caller's ids, or of logits: with many tokens a warp of fibers for each
// token, with few a CTA's row lists.
//
//   take_ids TOKENS OFFSET
//
// Reads from stdin, without gaps: ids [T, k] int32, weights [T, k] fp32; or logits [T, E] and bias [E] as the layer has
// them. Writes to stdout: masks [T, words] uint32; weights [T, E_local] fp32, NaN where none was written; the number of
// rows of one launch, int32, -1 if it does not take so many tokens; then of each row its expert and its token, int32,
// -1 if it has none, and with ids its weight, fp32.
#include <cuda_runtime.h>
// PTX in the headers: fences, which nothing here needs.
#define asm
#define volatile(...)

#include "permute.cuh"

using namespace hopper_fused;

template <class T>
static void output(T value) {
  fwrite(&value, sizeof(T), 1, stdout);
}

template <class T>
static const T* input(size_t count) {
  auto* values = new std::vector<T>(count);
  if (fread(values->data(), sizeof(T), count, stdin) != count) abort();
  return values->data();
}

static void print_rows(const FusedArgs& args, const std::vector<uint32_t>& mask) {
  auto s = std::make_unique<FusedSmem>();
  memset(static_cast<void*>(s.get()), 0xff, sizeof(FusedSmem));
  for (int t = 0; t < args.num_tokens; t++)
    for (int w = 0; w < kMaskWords; w++)
      s->mask[t / 32 * kPaddedLocalExperts + 32 * w + t % 32] = mask[w * args.num_tokens + t];
  run_cta(Config::kThreads, [&] {
    if constexpr (kTopKGiven) mark_tokens(*s, args);
    permute(*s, args);
  });
  output(s->num_rows);
  for (int row = 0; row < s->num_rows; row++) {
    output<int>(s->m_block[s->m_block_of_atom[row / kAtomRows]].expert);
    output(s->token[row] == kNoToken ? -1 : s->token[row]);
    output(kTopKGiven ? s->gemm1_smem().row_weight()[row] : 0.0f);
  }
}

int main(int, char** arguments) {
  const int tokens = atoi(arguments[1]);
  std::vector<float> weight((size_t)tokens * kNumLocalExperts, NAN);
  std::vector<uint32_t> mask(tokens * kMaskWords);
  FusedArgs args = {};
  args.num_tokens = tokens, args.local_expert_offset = atoi(arguments[2]), args.routed_scaling_factor = 2.5f;
  if (kTopKGiven) {
    args.topk_ids = input<int>(tokens * kTopK);
    args.topk_weights = input<float>(tokens * kTopK);
  } else {
    args.logits = input<uint16_t>((size_t)tokens * kNumExperts * (kRenorm ? 1 : 2));
    args.bias = input<uint16_t>(kNumExperts);
  }
  for (int t = 0; t < tokens; t++)
    run_cta(kWarp, [&] { token_experts(args, t, &mask[t], tokens, &weight[(size_t)t * kNumLocalExperts]); });
  for (int t = 0; t < tokens; t++)
    for (int w = 0; w < kMaskWords; w++) output(mask[w * tokens + t]);
  fwrite(weight.data(), 4, weight.size(), stdout);
  if (tokens <= Config::kMaxTokens) print_rows(args, mask);
  else output(-1);
}
