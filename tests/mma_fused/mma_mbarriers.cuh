// The named barriers of barrier.cuh as mbarriers, of as many threads: for racecheck, which does not follow the former.
__device__ __forceinline__ uint64_t* named_barriers() {
  __shared__ uint64_t barriers[3];  // by number, from 1
  return barriers;
}
// For all threads, and before a barrier of all.
__device__ __forceinline__ void named_barriers_init(int threads_of_first, int threads_of_second) {
  if (threadIdx.x > 0) return;
  const int threads[3] = {1, threads_of_first, threads_of_second};
  for (int id = 1; id < 3; id++)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_addr(named_barriers() + id)), "r"(threads[id])
                 : "memory");
}
__device__ __forceinline__ uint64_t named_barrier_arrive(int id, int) {
  uint64_t phase;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(phase) : "r"(smem_addr(named_barriers() + id)) : "memory");
  return phase;
}
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  const uint64_t phase = named_barrier_arrive(id, threads);
  asm volatile(
      "{\n.reg .pred p;\nWAIT_%=:\nmbarrier.test_wait.shared.b64 p, [%0], %1;\n@!p bra WAIT_%=;\n}\n" ::"r"(
          smem_addr(named_barriers() + id)),
      "l"(phase)
      : "memory");
}
__device__ __forceinline__ void named_barrier_sync_unaligned(int id, int threads) { named_barrier_sync(id, threads); }
