// cluster: thread block clusters: rank, barrier of all threads, arrivals and stores in another CTA's shared memory.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/barrier.cuh"
#include "common/cuda/ptx/read_bits.cuh"
#include "common/cuda/ptx/smem_addr.cuh"

__device__ __forceinline__ int block_rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives at the barrier that CTA `rank` of the cluster has at the same address. It does not wait for loads in flight:
// the qualifier that would, .release.cluster, compiles to a fence for the whole GPU. Where it matters, use
// release_stage_to_cluster, for the reason that barrier.cuh has under "release".
__device__ __forceinline__ void mbar_arrive_cluster(uint64_t* bar, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(smem_addr(bar)),
      "r"(rank)
      : "memory");
}
// release_stage_of_warp (barrier.cuh) for a stage that all CTAs of the cluster fill. For a whole warp: lane i, of lanes
// 0 to kCtas - 1, arrives at CTA i's barrier. read: what the thread has read of the stage.
template <int kCtas, class... Read>
__device__ __forceinline__ void release_stage_to_cluster(uint64_t* empty, const Read&... read) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if constexpr (sizeof...(Read) == 0) {
    if (lane < kCtas) mbar_arrive_cluster(empty, lane);
  } else {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem_addr(empty)), "r"(lane % kCtas));
    ARRIVE_AFTER(".shared::cluster.b64 _, [%2]", lane < kCtas, read_bits(read...), "r"(there));
  }
}
// Stores a word at the same address in CTA `rank` of the cluster. The barrier `bar` of that CTA counts its four bytes.
__device__ __forceinline__ void st_async_cluster(int* word, int value, uint64_t* bar, int rank) {
  asm volatile(
      "{\n.reg .b32 to, there;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 there, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %1, [there];\n}\n" ::"r"(smem_addr(word)),
      "r"(value), "r"(smem_addr(bar)), "r"(rank)
      : "memory");
}
