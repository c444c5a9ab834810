// What hopper_fused's headers need of CUDA so that the host can ask them which block does what. A warp is 32 fibers on one
// thread: each runs to its next exchange with the others, then it is the next lane's turn.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <functional>
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

// Named in functions that are not asked.
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
  ucontext_t lanes[kLanes], scheduler;
  bool done[kLanes];
  long long given[kLanes];
  std::function<void()> body;
};
inline Warp warp;

inline void next_lane() { swapcontext(&warp.lanes[threadIdx.x], &warp.scheduler); }

inline void lane_main() {
  warp.body();
  warp.done[threadIdx.x] = true;
}

// Runs `body` on all lanes of a warp.
inline void run_warp(std::function<void()> body) {
  constexpr size_t kStack = 256 << 10;
  static std::vector<char> stacks(kLanes * kStack);
  warp.body = std::move(body);
  for (int lane = 0; lane < kLanes; lane++) {
    warp.done[lane] = false;
    getcontext(&warp.lanes[lane]);
    warp.lanes[lane].uc_stack.ss_sp = stacks.data() + lane * kStack;
    warp.lanes[lane].uc_stack.ss_size = kStack;
    warp.lanes[lane].uc_link = &warp.scheduler;
    makecontext(&warp.lanes[lane], lane_main, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (int lane = 0; lane < kLanes; lane++) {
      if (warp.done[lane]) continue;
      running = true;
      threadIdx.x = lane;
      swapcontext(&warp.scheduler, &warp.lanes[lane]);
    }
  }
}

// Gives `value` to the other lanes; what lane `from(me)` gave comes back.
template <class T, class From>
T exchange(T value, From from) {
  warp.given[threadIdx.x] = value;
  next_lane();
  const T got = warp.given[from(threadIdx.x)];
  next_lane();
  return got;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return exchange(value, [&](int) { return lane; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return exchange(value, [&](int me) { return max(me - distance, 0); });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  warp.given[threadIdx.x] = value;
  next_lane();
  unsigned all = 0;
  for (int lane = 0; lane < kLanes; lane++) all |= (unsigned)warp.given[lane] << lane;
  next_lane();
  return all;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
