// tma: TMA's tensor and bulk copies, and the fences between the async proxy and other accesses. Policies: l2.cuh.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/smem_addr.cuh"

// ---- copies ----

__device__ __forceinline__ void prefetch_tma_descriptor(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies `bytes` contiguous bytes, a multiple of 16, to shared memory. The barrier `bar` counts them.
__device__ __forceinline__ void bulk_load(void* smem, const void* gmem, int bytes, uint64_t* bar, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(smem_addr(smem)),
      "l"(gmem), "r"(bytes), "r"(smem_addr(bar)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_load_2d(void* smem, const void* map, uint64_t* bar, int c0, int c1,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(smem_addr(smem)),
      "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_load_5d(
    void* smem, const void* map, uint64_t* bar, int c0, int c1, int c2, int c3, int c4, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(smem_addr(smem)),
      "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}
// The box goes to L2 only.
__device__ __forceinline__ void tma_prefetch_5d(const void* map, int c0, int c1, int c2, int c3, int c4,
                                                uint64_t policy) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.L2::cache_hint [%0, {%1, %2, %3, %4, %5}], %6;" ::"l"(map),
               "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
               : "memory");
}
// `bytes` contiguous bytes, a multiple of 16, go to L2 only.
__device__ __forceinline__ void bulk_prefetch(const void* gmem, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(gmem), "r"(bytes) : "memory");
}
// The box goes to the same address in each CTA of the cluster whose bit is set in `ctas`, and counts at `bar` there.
__device__ __forceinline__ void tma_load_5d_multicast(void* smem, const void* map, uint64_t* bar, int c0, int c1,
                                                      int c2, int c3, int c4, uint16_t ctas, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8, %9;" ::"r"(smem_addr(smem)),
      "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(ctas), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_load_2d_multicast(
    void* smem, const void* map, uint64_t* bar, int c0, int c1, uint16_t ctas, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(smem_addr(smem)),
      "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "h"(ctas), "l"(policy)
      : "memory");
}
// From shared to global memory.
__device__ __forceinline__ void bulk_store(void* gmem, const void* smem, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem_addr(smem)),
               "r"(bytes)
               : "memory");
}
// A box from shared memory.
__device__ __forceinline__ void tma_store_2d(const void* map, const void* smem, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(smem_addr(smem)), "r"(c0), "r"(c1)
               : "memory");
}
// The thread's bulk stores so far become one group.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the groups have read shared memory, so that it may be overwritten.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// The same, but does not wait for the last kPending groups.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until the groups are complete: written and visible.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- proxy fences ----

// Orders this thread's generic accesses to shared or global memory with those of the async proxy (TMA, wgmma).
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
