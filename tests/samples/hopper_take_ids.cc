// Runs hopper_fused's take_ids on the host, a warp of fibers for each token.
//
//   take_ids TOKENS OFFSET
//
// Reads from stdin, without gaps: ids [T, k] int32, weights [T, k] fp32. Writes to stdout: masks [T, words] uint32, then
// weights [T, E_local] fp32, NaN where none was written.
#include <cuda_runtime.h>

#include "token_experts.cuh"

int main(int, char** arguments) {
  const int tokens = atoi(arguments[1]);
  std::vector<int> ids(tokens * kTopK);
  std::vector<float> given(ids.size()), weight((size_t)tokens * kLocal, NAN);
  std::vector<uint32_t> mask(tokens * kMaskWords);
  if (fread(ids.data(), 4, ids.size(), stdin) != ids.size()) abort();
  if (fread(given.data(), 4, given.size(), stdin) != given.size()) abort();
  LayerArgs args = {};
  args.local_expert_offset = atoi(arguments[2]);
  args.topk_ids = ids.data(), args.topk_weights = given.data();
  for (int t = 0; t < tokens; t++)
    run_cta(kWarp, [&] { token_experts(args, t, &mask[t], tokens, &weight[(size_t)t * kLocal]); });
  for (int t = 0; t < tokens; t++)
    for (int w = 0; w < kMaskWords; w++) fwrite(&mask[w * tokens + t], 4, 1, stdout);
  fwrite(weight.data(), 4, weight.size(), stdout);
}
