// gemm2_queue: what gemm2's CTAs share apart from tiles: how long its queue is, how W2 is cached, and what their warps
// without tiles do.
#pragma once
#include "common/cuda/layer/interface.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// W2's L2 policy is evict_first up to so many rows per active expert, where few tiles share it. On an H200, DeepSeek-V3
// on one of eight ranks, evict_unchanged costs 0.8 to 2.3% up to 3000 tokens and saves 0.1 to 0.7% from 8192.
constexpr int kEvictFirstRows = 160;

__device__ __forceinline__ int entries_of_pass(const TileQueues& queues, const GroupedArgs& args) {
  return (queues.long_entries + queues.short_entries) * (args.y_columns / (2 * Grouped::kBlockN));
}

// Where all experts are local every token has rows, but not where the caller may give ids of none, such as -1.
constexpr bool kSomeWithoutRows = kTopKGiven || kNumRoutedLocalExperts < kNumExperts;

// For the producer warps that do not load. A warp looks at kAtOnce tokens at a time.
__device__ __forceinline__ void zero_tokens_without_rows(const GroupedArgs& args) {
  constexpr int kWarps = kProducerThreads / kWarp - 1, kAtOnce = 8;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kProducerThreads / kWarp - 1;
  for (int first = (blockIdx.x * kWarps + warp) * kAtOnce; first < args.num_tokens;
       first += gridDim.x * kWarps * kAtOnce) {
    const int t = first + lane;
    // From L2, as the queues are: L1 may be old before this kernel's own pdl_wait(), which costs 1% at 4096 tokens.
    const int* rows = args.token_rows + (size_t)t * kMaxTokenRows;
    const bool without = lane < kAtOnce && t < args.num_tokens && __ldcg(rows) < 0;
    for (unsigned left = __ballot_sync(kFullWarp, without); left; left &= left - 1) {
      uint4* to = reinterpret_cast<uint4*>(args.output + (size_t)(first + __ffs(left) - 1) * kHidden);
#pragma unroll 4
      for (int i = lane; i < kHidden / 8; i += kWarp) __stcs(to + i, make_uint4(0, 0, 0, 0));
    }
  }
}

}  // namespace hopper_fused
