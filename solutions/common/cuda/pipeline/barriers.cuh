// barriers: the barriers of a CTA as types. ptx/barrier.cuh has the instructions, and says what a release is.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/barrier.cuh"

// An mbarrier in shared memory: a phase is complete when the arrivals that it expects, and the bytes, are in. Copies to
// shared memory (ptx/tma.cuh) take the pointer that it converts to.
struct Barrier {
  uint64_t word;

  __device__ __forceinline__ operator uint64_t*() { return &word; }

  __device__ __forceinline__ void init(int arrivals) { mbar_init(&word, arrivals); }
  // Waits until the phase of this parity is complete.
  __device__ __forceinline__ void wait(int parity) { mbar_wait(&word, parity); }

  __device__ __forceinline__ void arrive() { mbar_arrive(&word); }
  __device__ __forceinline__ void expect(int bytes) { mbar_expect_tx(&word, bytes); }
  __device__ __forceinline__ void arrive_and_expect(int bytes) { mbar_arrive_expect_tx(&word, bytes); }

  // Arrive once the values `read` from the stage are in registers. release is for one thread, release_by_warp for a
  // whole warp, of which one lane arrives, refill for a thread that fills the stage again itself.
  template <class... Read>
  __device__ __forceinline__ void release(const Read&... read) {
    release_stage(&word, read...);
  }
  template <class... Read>
  __device__ __forceinline__ void release_by_warp(const Read&... read) {
    release_stage_of_warp(&word, read...);
  }
  template <class... Read>
  __device__ __forceinline__ void refill(int bytes, const Read&... read) {
    refill_stage(&word, bytes, read...);
  }
};

// Named barriers of the hardware, each for kThreads threads of a CTA. Barrier `nth` has the number kFirst + nth; number
// 0 is that of __syncthreads().
template <int kFirst, int kThreads>
struct NamedBarrier {
  static __device__ __forceinline__ void sync(int nth = 0) { named_barrier_sync(kFirst + nth, kThreads); }
  // For warps that come from different places in the program.
  static __device__ __forceinline__ void sync_unaligned(int nth = 0) {
    named_barrier_sync_unaligned(kFirst + nth, kThreads);
  }
  // Arrives without waiting.
  static __device__ __forceinline__ void arrive(int nth = 0) { named_barrier_arrive(kFirst + nth, kThreads); }
};
