// barrier: mbarriers, which also count bytes, and named barriers of some of a CTA's warps.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/read_bits.cuh"
#include "common/cuda/ptx/smem_addr.cuh"

// ---- mbarrier: a phase completes when the expected arrivals and the expected bytes are in ----

__device__ __forceinline__ void mbar_init(uint64_t* bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(arrivals));
}
// Makes the initialisation visible to the async proxy and to the cluster.
__device__ __forceinline__ void fence_barrier_init() {
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

// ---- release: an arrival by which others may overwrite what was read ----
//
// A load from shared memory is issued, and is over when its value is in a register. mbarrier.arrive needs no value, so
// ptxas may put it, and did, between the load and the first use of what it loads: a copy that the arrival allowed then
// overtook the load, on SMs that ran CTAs of other kernels too. Neither fences nor empty asm statements prevent that.
// So a release takes what was read: it arrives in both branches of a predicate of the bits, which are in registers then.
// A warp's loads are over together: where one lane arrives for a converged warp, what it has read itself is enough.
// tests/kernels/test_released_in_flight.py follows the machine code. Dearer: an address that depends on the bits by a
// zero that the compiler does not know, which each release fetches again; a vote of the warp.

// ARRIVE: what follows mbarrier.arrive, in threads where `arrives` and when `value` is in its register.
#define ARRIVE_AFTER(ARRIVE, arrives, value, ...)                                                          \
  asm volatile(                                                                                            \
      "{\n.reg .pred m, p, q;\nsetp.ne.s32 m, %1, 0;\n"                                                    \
      "setp.eq.and.u32 p, %0, 0xffffffff, m;\nsetp.ne.and.u32 q, %0, 0xffffffff, m;\n"                     \
      "@p mbarrier.arrive" ARRIVE ";\n@q mbarrier.arrive" ARRIVE ";\n}\n" ::"r"(value), "r"((int)(arrives)), \
      __VA_ARGS__                                                                                          \
      : "memory")

// For one thread.
template <class... Read>
__device__ __forceinline__ void release_stage(uint64_t* empty, const Read&... read) {
  if constexpr (sizeof...(Read) == 0) mbar_arrive(empty);
  else ARRIVE_AFTER(".shared::cta.b64 _, [%2]", true, read_bits(read...), "r"(smem_addr(empty)));
}
// For a whole warp, of which one lane arrives.
template <class... Read>
__device__ __forceinline__ void release_stage_of_warp(uint64_t* empty, const Read&... read) {
  __syncwarp();  // orders what the other lanes have read
  ARRIVE_AFTER(".shared::cta.b64 _, [%2]", threadIdx.x % 32 == 0, read_bits(read...), "r"(smem_addr(empty)));
}
// For a thread that fills the stage itself: as mbar_arrive_expect_tx. Copies that it requests next come after it.
template <class... Read>
__device__ __forceinline__ void refill_stage(uint64_t* full, int bytes, const Read&... read) {
  ARRIVE_AFTER(".expect_tx.shared::cta.b64 _, [%2], %3", true, read_bits(read...), "r"(smem_addr(full)), "r"(bytes));
}

// ---- named barriers ----

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// For warps that reach the barrier from different places in the program: bar.sync lets the compiler assume one place.
__device__ __forceinline__ void named_barrier_sync_unaligned(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
