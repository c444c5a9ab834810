// barrier: what threads wait for: mbarriers, named barriers, counters in global memory, clusters, the previous kernel.
#pragma once
#include <cstdint>

#include "sizes.cuh"

__device__ __forceinline__ uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// ---- mbarrier: a phase completes when the expected arrivals and the expected bytes are in ----

__device__ __forceinline__ void mbar_init(uint64_t* bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(arrivals));
}
// Makes the initialisation visible to the async proxy and to the cluster.
__device__ __forceinline__ void mbar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbar_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_addr(bar)) : "memory");
}
__device__ __forceinline__ void mbar_expect_tx(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive_expect_tx(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint64_t* bar, int phase) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "WAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}\n" ::
          "r"(smem_addr(bar)),
      "r"(phase)
      : "memory");
}

// ---- named barriers ----

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// For warps that reach the barrier from different places in the program: bar.sync lets the compiler assume one place.
__device__ __forceinline__ void named_barrier_sync_unaligned(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- clusters ----

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives at the barrier that CTA `rank` of the cluster has at the same address. Loads that this thread has in flight
// are not ordered before it, as a release for the cluster would cost a trip to L2: use what was read before arriving.
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

// ---- counters in global memory ----

__device__ __forceinline__ void counter_arrive(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned seen;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  return seen;
}
// For one thread: waits until the counter has reached `count`.
__device__ __forceinline__ void counter_wait(const unsigned* counter, unsigned count) {
  while (load_acquire(counter) < count) {
  }
}

// ---- programmatic dependent launch (PDL) ----

// A kernel may start as soon as all CTAs of the previous kernel in the stream have called pdl_launch_dependents() or
// ended. It must not touch what the previous kernel reads or writes before pdl_wait(), which waits for that kernel's
// end and flush. A kernel that calls pdl_launch_dependents() after its own pdl_wait() lets its successor start only
// when all earlier kernels are over.
__device__ __forceinline__ void pdl_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- registers ----

// setmaxnreg: moves the CTA's registers from the producer to the consumer warpgroups. For all warps of a warpgroup.
template <int N>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
// Whether register budgets per thread fit into an SM: setmaxnreg takes multiples of 8 from 24 to 256.
constexpr bool registers_fit(int producer, int consumer) {
  return producer % 8 == 0 && consumer % 8 == 0 && producer >= 24 && consumer <= 256 &&
         producer * kProducerThreads + consumer * kConsumerThreads <= kRegistersPerSm;
}
