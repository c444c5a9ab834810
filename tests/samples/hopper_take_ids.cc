// Runs on the host what hopper_fused makes of a caller's ids: with many tokens a warp of fibers for each token, with
// few a CTA's row lists.
//
//   take_ids TOKENS OFFSET
//
// Reads from stdin, without gaps: ids [T, k] int32, weights [T, k] fp32. Writes to stdout: masks [T, words] uint32;
// weights [T, E_local] fp32, NaN where none was written; the number of rows of one launch, int32, -1 if it does not
// take so many tokens; then of each row its expert and its token, int32, -1 if it has none, and its weight, fp32.
#include <cuda_runtime.h>

#include "permute.cuh"

template <class T>
static void output(T value) {
  fwrite(&value, sizeof(T), 1, stdout);
}

static void print_rows(const FusedArgs& args) {
  auto s = std::make_unique<FusedSmem>();
  memset(static_cast<void*>(s.get()), 0xff, sizeof(FusedSmem));
  run_cta(kFusedThreads, [&] {
    mark_tokens(*s, args);
    permute(*s, args);
  });
  output(s->num_rows);
  for (int row = 0; row < s->num_rows; row++) {
    output<int>(s->m_block[s->m_block_of_atom[row / kAtomRows]].expert);
    output(s->token[row] == kNoToken ? -1 : s->token[row]);
    output(s->gemm1_smem().row_weight[row]);
  }
}

int main(int, char** arguments) {
  const int tokens = atoi(arguments[1]);
  std::vector<int> ids(tokens * kTopK);
  std::vector<float> given(ids.size()), weight((size_t)tokens * kNumLocalExperts, NAN);
  std::vector<uint32_t> mask(tokens * kMaskWords);
  if (fread(ids.data(), 4, ids.size(), stdin) != ids.size()) abort();
  if (fread(given.data(), 4, given.size(), stdin) != given.size()) abort();
  FusedArgs args = {};
  args.num_tokens = tokens, args.local_expert_offset = atoi(arguments[2]);
  args.topk_ids = ids.data(), args.topk_weights = given.data();
  for (int t = 0; t < tokens; t++)
    run_cta(kWarp, [&] { take_ids(args, t, &mask[t], tokens, &weight[(size_t)t * kNumLocalExperts]); });
  for (int t = 0; t < tokens; t++)
    for (int w = 0; w < kMaskWords; w++) output(mask[w * tokens + t]);
  fwrite(weight.data(), 4, weight.size(), stdout);
  if (tokens <= kFusedMaxTokens) print_rows(args);
  else output(-1);
}
