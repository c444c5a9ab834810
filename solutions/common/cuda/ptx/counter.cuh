// counter: counters in global memory, by which CTAs of one or of two kernels wait for each other.
#pragma once

__device__ __forceinline__ void counter_arrive(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Returns whether this arrival is the last of `count`. If so, this thread sees all that was written before any of them.
__device__ __forceinline__ bool counter_arrive_last(unsigned* counter, unsigned count) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before == count - 1;
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned seen;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  return seen;
}
// Waits until the counter has reached `count`. Orders what the calling thread reads next; others need a barrier.
__device__ __forceinline__ void counter_wait(const unsigned* counter, unsigned count) {
  while (load_acquire(counter) < count) {
  }
}
