// Stands in for CUDA's headers, numerics.cuh and the wrappers of PTX, so that the host runs the device code of
// hopper_fused's grouped GEMMs: hopper_machine.cc has the threads, copies and barriers. Copies and products move no
// data; they only touch the bytes that they read and write, as no branch of the kernels depends on those.
//
// Each call that synchronises passes its place in the source, by which it can be left out: see `synchronises`.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../samples/cuda_on_host/warp.h"

struct Index {
  unsigned x;
};
extern Index threadIdx, blockIdx, gridDim;
struct CUtensorMap {
  int box_bytes;
};

constexpr int kSharedBytes = 227 * 1024;
uint8_t* shared_memory();
inline uint32_t smem_addr(const void* p) { return static_cast<const uint8_t*>(p) - shared_memory(); }
inline int this_lane() { return threadIdx.x % kLanes; }
// Shuffles give a lane its own value: those that steer a branch have one value in the whole warp.
template <class T>
auto gather(T value) {
  return [value](int) { return value; };
}
inline unsigned atomicAdd(unsigned* counter, unsigned value) { return (*counter += value) - value; }
inline void __stcs(uint4* to, uint4 value) { *to = value; }

// Where a call is: FILE:LINE of the packed source.
struct Place {
  const char* file;
  int line;
  Place(const char* file_ = __builtin_FILE(), int line_ = __builtin_LINE()) : file(file_), line(line_) {}
};

// ---- hopper_machine.cc ----

// Whether the call is to be made. All are, but for the one that a test leaves out.
bool synchronises(const char* function, Place place);
void meet(int id, int threads, bool orders);  // waits for so many threads of the CTA, or of both with id kCluster
constexpr int kCluster = -1, kCta = -2, kWarpMeets = -64;  // below kWarpMeets: a warp's
void mbar_start(uint64_t* bar, int arrivals);
void mbar_signal(uint64_t* bar, int cta, int arrivals, int bytes);
void mbar_await(uint64_t* bar, int phase);
void fence_proxy();
// An asynchronous write of the same bytes in each CTA of the mask, whose bytes count at `bar` there.
void copy_to_shared(void* to, int bytes, uint64_t* bar, unsigned ctas, bool async_proxy);
void store_in_cluster(int* word, int value, uint64_t* bar, int cta);
// The thread's cp.async: it is over at the barrier of the next arrive_after_copies.
void copy_of_thread(void* to, int bytes);
void arrive_after_copies(uint64_t* bar);
// An asynchronous read by the async proxy: by the warp's products, until await_products, or by the thread's bulk stores.
void read_shared(const void* from, int bytes, bool by_product);
void await_products();
void await_stores(int pending = 0);  // until so many of the thread's last ones are left

inline int own_cta() { return blockIdx.x; }
inline int block_rank_in_cluster() { return blockIdx.x; }
inline void converge() { meet(kWarpMeets - threadIdx.x / kLanes, kLanes, false); }
inline void order_warp() { meet(kWarpMeets - threadIdx.x / kLanes, kLanes, true); }

// ---- barrier.cuh, barriers.cuh, cluster.cuh ----

inline void fence_barrier_init(Place place = {}) {
  if (synchronises("fence_barrier_init", place)) fence_proxy();
}
struct Barrier {
  uint64_t word;

  operator uint64_t*() { return &word; }

  void init(int arrivals) { mbar_start(&word, arrivals); }
  void wait(int parity, Place place = {}) {
    if (synchronises("wait", place)) mbar_await(&word, parity);
  }

  void expect(int bytes) { mbar_signal(&word, own_cta(), 0, bytes); }
  void arrive_and_expect(int bytes, Place place = {}) {
    if (synchronises("arrive_and_expect", place)) mbar_signal(&word, own_cta(), 1, bytes);
  }
};
template <int kFirst, int kThreads>
struct NamedBarrier {
  static void sync(int nth = 0, Place place = {}) {
    if (synchronises("sync", place)) meet(kFirst + nth, kThreads, true);
  }
};
inline void __syncthreads() { meet(kCta, 384, true); }
inline void __syncwarp() { order_warp(); }
inline void cluster_sync(Place place = {}) {
  if (synchronises("cluster_sync", place)) meet(kCluster, 2 * 384, true);
}
template <int kCtas, class... Read>
void release_stage_to_cluster(uint64_t* empty, const Read&...) {
  if (!synchronises("release_stage_to_cluster", {})) return;
  order_warp();
  if (this_lane() < kCtas) mbar_signal(empty, this_lane(), 1, 0);
}
inline void st_async_cluster(int* word, int value, uint64_t* bar, int rank) {
  store_in_cluster(word, value, bar, rank);
}

// ---- tma.cuh, cp_async.cuh ----

inline void prefetch_tma_descriptor(const void*) {}
inline void bulk_load(void* smem, const void*, int bytes, uint64_t* bar, uint64_t) {
  copy_to_shared(smem, bytes, bar, 1u << own_cta(), true);
}
inline void tma_load(void* smem, const void* map, uint64_t* bar, unsigned ctas) {
  copy_to_shared(smem, static_cast<const CUtensorMap*>(map)->box_bytes, bar, ctas, true);
}
inline void tma_load_2d(void* smem, const void* map, uint64_t* bar, int, int, uint64_t) {
  tma_load(smem, map, bar, 1u << own_cta());
}
inline void tma_load_5d(void* smem, const void* map, uint64_t* bar, int, int, int, int, int, uint64_t) {
  tma_load(smem, map, bar, 1u << own_cta());
}
inline void tma_load_2d_multicast(void* smem, const void* map, uint64_t* bar, int, int, uint16_t ctas, uint64_t) {
  tma_load(smem, map, bar, ctas);
}
inline void tma_load_5d_multicast(void* smem, const void* map, uint64_t* bar, int, int, int, int, int, uint16_t ctas,
                                  uint64_t) {
  tma_load(smem, map, bar, ctas);
}
inline void bulk_store(void*, const void* smem, int bytes) { read_shared(smem, bytes, false); }
inline void tma_store_2d(const void* map, const void* smem, int, int) {
  read_shared(smem, static_cast<const CUtensorMap*>(map)->box_bytes, false);
}
inline void bulk_commit() {}
inline void bulk_wait_read(Place place = {}) {
  if (synchronises("bulk_wait_read", place)) await_stores();
}
template <int kPending>
void bulk_wait_read_but(Place place = {}) {
  if (synchronises("bulk_wait_read_but", place)) await_stores(kPending);
}
inline void bulk_wait() { await_stores(); }
inline void fence_proxy_async_shared(Place place = {}) {
  if (synchronises("fence_proxy_async_shared", place)) fence_proxy();
}
inline void fence_proxy_async_global() {}
inline void cp_async_4(void* smem, const void*) { copy_of_thread(smem, 4); }
inline void cp_async_16(void* smem, const void*) { copy_of_thread(smem, 16); }
inline void cp_async_mbar_arrive(uint64_t* bar) { arrive_after_copies(bar); }

// ---- wgmma.cuh, behind its layouts; stmatrix ----

inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
template <int kPending>
void warpgroup_wait(Place place = {}) {
  static_assert(kPending == 0);
  if (synchronises("warpgroup_wait", place)) await_products();
}
template <int R>
void warpgroup_fence_operand(float (&)[R]) {}

// The K steps of a K block read the same rows of 128 bytes: the first one of them counts.
inline void read_operand(uint64_t desc, int rows) {
  const int start = (desc & 0x3fff) << 4;
  if (start % 128 == 0) read_shared(shared_memory() + start, rows * 128, true);
}
template <int N>
struct Wgmma {
  static void mma(float (&d)[N / 2], uint64_t a, uint64_t b, int) {
    for (float& each : d) each = 0.0f;
    if (this_lane() == 0) read_operand(a, 64), read_operand(b, N);
  }
};
// Each lane writes 16 bytes of a row.
inline void stmatrix(const uint8_t* row) { *reinterpret_cast<uint4*>(const_cast<uint8_t*>(row)) = {}; }

// ---- pdl.cuh, counter.cuh, l2.cuh, registers.cuh ----

inline void pdl_launch_dependents() {}
inline void pdl_wait() {}
inline void counter_arrive(unsigned* counter) { ++*counter; }
inline void counter_wait(const unsigned*, unsigned) {}
inline uint64_t l2_evict_first() { return 0; }
inline uint64_t l2_evict_unchanged() { return 0; }
inline uint64_t l2_evict_last() { return 0; }
template <int N>
void warpgroup_reg_alloc() {}
template <int N>
void warpgroup_reg_dealloc() {}
constexpr bool registers_fit(int, int, int, int) { return true; }

// ---- numerics.cuh: values that nobody looks at, but the compiler must not know it ----

inline float rcp_approx(float x) { return x; }
inline float swiglu_of_halves(float first, float second) { return first + second; }
inline float row_scale(float amax) { return amax; }
inline unsigned pack_bf16(float low, float high) { return __float_as_uint(low) + __float_as_uint(high); }
inline unsigned pack_fp16(float low, float high) { return pack_bf16(low, high); }
template <int kHSplit>
void quantise_fp8(uint16_t (&q)[kHSplit], float v0, float v1) {
  for (uint16_t& each : q) each = pack_bf16(v0, v1);
}
inline uint32_t transpose4(uint32_t mine) { return mine; }
inline float fp16_scale(float bound) { return bound; }
inline float inverse_power_of_two(float scale) { return scale; }
