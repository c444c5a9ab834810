// What CUDA headers need so that the host can run them: hopper_fused's division of work, cutlass_grouped's permutation.
// A CTA is fibers on one host thread. A lane runs to its next warp-wide exchange or barrier, then the next lane runs; a
// warp runs until all its lanes are at a barrier, then the next warp runs.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
using std::max;
using std::min;
using cudaError_t = int;
using cudaStream_t = void*;
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1) : x(x_), y(y_) {}
};
inline dim3 threadIdx, blockIdx, gridDim;
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct int4 {
  int x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
struct int2 {
  int x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }

// Named in functions that the host never calls.
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
    dim3 clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  int dynamicSmemBytes, numAttrs;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
};
enum { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
template <class... Any>
cudaError_t cudaLaunchKernelEx(Any...);
unsigned long __cvta_generic_to_shared(const void*);
unsigned atomicAdd(unsigned*, unsigned);
inline int atomicAdd(int* p, int value) { return std::exchange(*p, *p + value); }
inline unsigned atomicOr(unsigned* p, unsigned value) { return std::exchange(*p, *p | value); }
void __syncwarp();

constexpr int kLanes = 32;
constexpr int kMaxWarps = 32;
struct Warp {
  ucontext_t start[kLanes];
  jmp_buf lanes[kLanes], turn;  // where a lane that has started, and resume_lane, go on; swapcontext is a system call
  bool started[kLanes], done[kLanes], at_barrier[kLanes];
  unsigned exchanges[kLanes];  // begun by each lane so far
  long long given[2][kLanes];  // of this exchange and the one before, which slower lanes may still read
};
inline Warp warps[kMaxWarps];
inline std::function<void()> thread_body;

// Lets the other lanes run to this lane's exchange or barrier.
inline void pass_turn() {
  Warp& warp = warps[threadIdx.x / kLanes];
  if (!_setjmp(warp.lanes[threadIdx.x % kLanes])) _longjmp(warp.turn, 1);
}

// Publishes this lane's value and lets the other lanes publish theirs; all 32 values.
template <class T>
const long long* gather(T value) {
  static_assert(sizeof(T) <= sizeof(long long));
  Warp& warp = warps[threadIdx.x / kLanes];
  const int lane = threadIdx.x % kLanes;
  long long* given = warp.given[warp.exchanges[lane]++ % 2];
  given[lane] = 0;
  memcpy(&given[lane], &value, sizeof(T));
  pass_turn();
  return given;
}

inline void __syncthreads() {
  warps[threadIdx.x / kLanes].at_barrier[threadIdx.x % kLanes] = true;
  pass_turn();
}

inline void lane_main() {
  thread_body();
  Warp& warp = warps[threadIdx.x / kLanes];
  warp.done[threadIdx.x % kLanes] = true;
  _longjmp(warp.turn, 1);
}

// Runs thread threadIdx.x to its next exchange or barrier, or to its end.
inline void resume_lane() {
  Warp& warp = warps[threadIdx.x / kLanes];
  const int lane = threadIdx.x % kLanes;
  if (_setjmp(warp.turn)) return;
  if (std::exchange(warp.started[lane], true)) _longjmp(warp.lanes[lane], 1);
  setcontext(&warp.start[lane]);
}

// Runs warp w until all its lanes are at a barrier or have ended. Whether some are at a barrier.
inline bool resume_warp(int w) {
  Warp& warp = warps[w];
  for (int lane = 0; lane < kLanes; lane++) warp.at_barrier[lane] = false;
  for (;;) {
    int waiting = 0, ended = 0;
    for (int lane = 0; lane < kLanes; lane++) {
      if (!warp.done[lane]) {
        threadIdx.x = kLanes * w + lane;
        resume_lane();
      }
      waiting += warp.at_barrier[lane], ended += warp.done[lane];
    }
    if (waiting + ended == kLanes) return waiting > 0;
    if (waiting > 0) {
      fprintf(stderr, "warp %d: %d lanes are at a barrier, %d have ended, the others exchange\n", w, waiting, ended);
      abort();
    }
  }
}

// Runs `body` on all threads of a CTA of whole warps.
inline void run_cta(int threads, std::function<void()> body) {
  constexpr size_t kStack = 256 << 10;
  static std::unique_ptr<char[]> stacks(new char[kMaxWarps * kLanes * kStack]);  // of which little is ever touched
  thread_body = std::move(body);
  for (int thread = 0; thread < threads; thread++) {
    Warp& warp = warps[thread / kLanes];
    const int lane = thread % kLanes;
    warp.started[lane] = warp.done[lane] = false;
    warp.exchanges[lane] = 0;
    getcontext(&warp.start[lane]);
    warp.start[lane].uc_stack.ss_sp = stacks.get() + thread * kStack;
    warp.start[lane].uc_stack.ss_size = kStack;
    warp.start[lane].uc_link = nullptr;
    makecontext(&warp.start[lane], lane_main, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (int w = 0; w < threads / kLanes; w++) running |= resume_warp(w);
  }
}

template <class T>
T value_of(long long given) {
  T value;
  memcpy(&value, &given, sizeof(T));
  return value;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return value_of<T>(gather(value)[lane]);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return value_of<T>(gather(value)[max(int(threadIdx.x % kLanes) - distance, 0)]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return value_of<T>(gather(value)[threadIdx.x % kLanes ^ mask]);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const long long* given = gather((int)value);
  unsigned all = 0;
  for (int lane = 0; lane < kLanes; lane++) all |= (unsigned)given[lane] << lane;
  return all;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const long long* given = gather(value);
  return *std::max_element(given, given + kLanes);
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  const long long* given = gather(value);
  unsigned all = 0;
  for (int lane = 0; lane < kLanes; lane++) all |= (unsigned)given[lane];
  return all;
}
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
