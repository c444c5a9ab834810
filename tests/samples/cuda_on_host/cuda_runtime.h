// What CUDA headers need so that the host can run them: hopper_fused's division of work, cutlass_grouped's permutation.
// A CTA is fibers on one host thread. A lane runs to its next warp-wide exchange or barrier, then the next lane runs; a
// warp runs until all its lanes are at a barrier, then the next warp runs.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "warp.h"

#define __shared__
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1) : x(x_), y(y_) {}
};
inline dim3 threadIdx, blockIdx, gridDim;
inline int this_lane() { return threadIdx.x % kLanes; }

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

template <class T>
auto gather(T value) {
  static_assert(sizeof(T) <= sizeof(long long));
  Warp& warp = warps[threadIdx.x / kLanes];
  long long* given = warp.given[warp.exchanges[this_lane()]++ % 2];
  given[this_lane()] = 0;
  memcpy(&given[this_lane()], &value, sizeof(T));
  pass_turn();
  return [given](int lane) { return bits_of<T>(given[lane]); };
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
