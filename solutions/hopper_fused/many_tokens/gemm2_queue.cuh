// gemm2_queue: what the FP8 and the MXFP4 gemm2 have in common: how long the queue is, how W2 is cached, and what the
// producer warps that do not load are used for.
#pragma once
#include "common/cuda/layer/interface.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

// Up to so many rows per active expert W2's L2 policy is evict_first, because few tiles share a weight; above, it is
// evict_unchanged. On an H200, DeepSeek-V3 on one of eight ranks, evict_unchanged costs 0.8 to 2.3% up to 3000 tokens
// and saves 0.1 to 0.7% from 8192.
constexpr int kEvictFirstRows = 160;

// The queue's length in a launch of gemm2, which computes args.y_columns columns of y.
__device__ __forceinline__ int entries_of_pass(const TileQueues& queues, const GroupedArgs& args) {
  return (queues.long_entries + queues.short_entries) * (args.y_columns / (2 * Grouped::kBlockN));
}

// Whether a token may have no row. Where all experts are local it has one, unless the caller gives the experts and may
// pass ids that are nobody's, such as -1.
constexpr bool kSomeWithoutRows = kTopKGiven || kNumRoutedLocalExperts < kNumExperts;

// Zeroes the output of tokens without rows. For the producer warps that do not load; a warp looks at kAtOnce tokens at
// a time.
__device__ __forceinline__ void zero_tokens_without_rows(const GroupedArgs& args) {
  constexpr int kWarps = kProducerThreads / kWarp - 1, kAtOnce = 8;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kProducerThreads / kWarp - 1;
  for (int first = (blockIdx.x * kWarps + warp) * kAtOnce; first < args.num_tokens;
       first += gridDim.x * kWarps * kAtOnce) {
    const int t = first + lane;
    // Read from L2 (__ldcg), as the queues are, because L1 may hold old values before a pdl_wait() in this kernel. Such
    // a wait would cost 1% at 4096 tokens.
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
