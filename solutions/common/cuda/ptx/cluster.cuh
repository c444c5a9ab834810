// cluster: thread block clusters: rank, barrier of all threads, arrivals and stores in another CTA's shared memory.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/smem_addr.cuh"

__device__ __forceinline__ int block_rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives at the barrier that CTA `rank` of the cluster has at the same address. Loads that this thread has in flight
// are not ordered before it: use what was read before arriving. .release.cluster, which would order them, compiles to a
// fence for the whole GPU.
__device__ __forceinline__ void mbar_arrive_cluster(uint64_t* bar, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(smem_addr(bar)),
      "r"(rank)
      : "memory");
}
// Stores a word at the same address in CTA `rank` of the cluster; its four bytes count at the barrier there.
__device__ __forceinline__ void st_async_cluster(int* word, int value, uint64_t* bar, int rank) {
  asm volatile(
      "{\n.reg .b32 to, there;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 there, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %1, [there];\n}\n" ::"r"(smem_addr(word)),
      "r"(value), "r"(smem_addr(bar)), "r"(rank)
      : "memory");
}
