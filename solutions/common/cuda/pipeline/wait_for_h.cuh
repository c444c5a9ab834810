// wait_for_h: gemm2 waits for gemm1 of the same launch, m_block by m_block.
#pragma once
#include "common/cuda/ptx/counter.cuh"
#include "common/cuda/pipeline/threads.cuh"
#include "common/cuda/ptx/tma.cuh"

// For a whole warp: waits until all n_blocks of h of m_block m are stored, as n_blocks_stored counts them. Returns the
// first m_block after it that may lack some. kByTma: h, which generic stores wrote, is then read by TMA or bulk copies.
template <bool kByTma>
__device__ __forceinline__ int wait_for_h(const unsigned* n_blocks_stored, int n_blocks, int m, int num_m_blocks) {
  const int mine = m + threadIdx.x % kWarp;
  unsigned missing;
  do {
    const bool complete = mine >= num_m_blocks || load_acquire(n_blocks_stored + mine) == n_blocks;
    missing = __ballot_sync(kFullWarp, !complete);
  } while (missing & 1);
  __syncwarp();  // what each lane acquired, all may read
  if constexpr (kByTma) fence_proxy_async_global();
  return missing ? m + __ffs(missing) - 1 : m + kWarp;
}
