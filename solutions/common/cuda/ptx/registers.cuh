// registers: setmaxnreg, by which producer warpgroups give registers back and consumer warpgroups take more.
#pragma once

constexpr int kRegistersPerSm = 65536;

// For all warps of a warpgroup.
template <int N>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
// Whether so many registers per thread fit into those that the only CTA of an SM starts with: then every thread has the
// same number, a multiple of 8. A warpgroup that asks for more than there are waits for ever. setmaxnreg takes
// multiples of 8 from 24 to 256.
constexpr bool registers_fit(int producer, int producer_threads, int consumer, int consumer_threads) {
  const int threads = producer_threads + consumer_threads, at_start = kRegistersPerSm / threads / 8 * 8;
  return producer % 8 == 0 && consumer % 8 == 0 && producer >= 24 && consumer <= 256 &&
         producer * producer_threads + consumer * consumer_threads <= at_start * threads;
}
