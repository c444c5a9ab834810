// What hopper_fused's headers need of CUDA so that the host can run their division of work. A warp is 32 fibers on one
// thread: each lane runs to its next warp-wide exchange, then the next lane runs.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
using std::max;
using std::min;
using cudaError_t = int;
using cudaStream_t = void*;
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1) : x(x_) {}
};
inline dim3 threadIdx, blockIdx, gridDim;
struct uint2 {
  unsigned x, y;
};
struct int4 {
  int x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

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
void __syncthreads();
void __syncwarp();

constexpr int kLanes = 32;
struct Warp {
  ucontext_t start[kLanes];
  jmp_buf lanes[kLanes], turn;  // where a lane that has started, and resume_lane, go on; swapcontext is a system call
  bool started[kLanes], done[kLanes];
  unsigned exchanges[kLanes];  // begun by each lane so far
  long long given[2][kLanes];  // of this exchange and the one before, which slower lanes may still read
  std::function<void()> body;
};
inline Warp warp;

// Publishes this lane's value and lets the other lanes publish theirs; all 32 values.
inline const long long* gather(long long value) {
  long long* given = warp.given[warp.exchanges[threadIdx.x]++ % 2];
  given[threadIdx.x] = value;
  if (!_setjmp(warp.lanes[threadIdx.x])) _longjmp(warp.turn, 1);
  return given;
}

inline void lane_main() {
  warp.body();
  warp.done[threadIdx.x] = true;
  _longjmp(warp.turn, 1);
}

// Runs lane threadIdx.x to its next exchange, or to its end.
inline void resume_lane() {
  if (_setjmp(warp.turn)) return;
  if (std::exchange(warp.started[threadIdx.x], true)) _longjmp(warp.lanes[threadIdx.x], 1);
  setcontext(&warp.start[threadIdx.x]);
}

// Runs `body` on all lanes of a warp.
inline void run_warp(std::function<void()> body) {
  constexpr size_t kStack = 256 << 10;
  static std::vector<char> stacks(kLanes * kStack);
  warp.body = std::move(body);
  for (int lane = 0; lane < kLanes; lane++) {
    warp.started[lane] = warp.done[lane] = false;
    warp.exchanges[lane] = 0;
    getcontext(&warp.start[lane]);
    warp.start[lane].uc_stack.ss_sp = stacks.data() + lane * kStack;
    warp.start[lane].uc_stack.ss_size = kStack;
    warp.start[lane].uc_link = nullptr;
    makecontext(&warp.start[lane], lane_main, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (int lane = 0; lane < kLanes; lane++) {
      if (warp.done[lane]) continue;
      running = true;
      threadIdx.x = lane;
      resume_lane();
    }
  }
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return gather(value)[lane];
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return gather(value)[max(int(threadIdx.x) - distance, 0)];
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const long long* given = gather(value);
  unsigned all = 0;
  for (int lane = 0; lane < kLanes; lane++) all |= (unsigned)given[lane] << lane;
  return all;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
