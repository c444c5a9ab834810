// What mma_fused's device code needs so that the host can run a whole grid: stands in for the CUDA headers,
// numerics.cuh and the wrappers of PTX. A thread is a fiber that runs to its next exchange, barrier or idle poll.
//
// Copies are late on purpose: a stage holds NaN from the issue of a copy until somebody waits for it. So weights that
// are read too early, or too late, spoil the result. With -fsanitize=thread races are reported: races_on_host.h.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "../samples/cuda_on_host/warp.h"
#include "interface.cuh"
#include "../samples/cuda_on_host/races_on_host.h"
#include "config.cuh"

using namespace mma_fused;

struct CUtensorMap {
  const uint8_t* base;
};
// ---- threads ----

struct Operands {
  uint32_t word[6];
};
struct Copy {
  uint8_t* to;
  const uint8_t* from;
  size_t bytes = 16;
};
struct Fiber {
  ucontext_t start;  // and where it goes on, with ThreadSanitizer, which does not follow long jumps
  jmp_buf at;
  void* seen_as;  // by ThreadSanitizer
  bool started = false, done = false;
  unsigned exchanges = 0;  // begun so far
  std::vector<std::vector<Copy>> groups{1};  // cp.async, the open group last
};
struct WarpState {
  Operands given[2][kLanes];  // of this exchange and the one before, which slower lanes may still read
  char order[2];              // of __syncwarp
};
struct NamedBarrierState {
  int arrived = 0;
  unsigned phase = 0;
  char order[2];  // of this phase and the one before, which slower threads may still leave
};
struct Cta {
  std::vector<Fiber> fibers = std::vector<Fiber>(Config::kThreads);
  std::vector<WarpState> warps = std::vector<WarpState>(Config::kWarps);
  std::map<int, NamedBarrierState> barriers;
  uint8_t* smem;
};
struct Index {
  unsigned x;
};
inline Index threadIdx, blockIdx, gridDim;
inline int this_lane() { return threadIdx.x % kLanes; }
inline std::vector<Cta> grid;
inline jmp_buf turn;  // where the scheduler goes on
inline bool waits_for_lanes;  // why the fiber passed its turn
inline std::function<void()> kernel;
inline long long idle = 0;  // turns without a change since the last one that changed something

inline Cta& cta() { return grid[blockIdx.x]; }
inline Fiber& fiber() { return cta().fibers[threadIdx.x]; }
#ifdef __SANITIZE_THREAD__
inline ucontext_t scheduler;
inline void* scheduler_seen_as;
inline void to_scheduler() {
  __tsan_switch_to_fiber(scheduler_seen_as, 1);  // 1: orders nothing
  swapcontext(&fiber().start, &scheduler);
}
inline void resume() {
  Fiber& f = fiber();
  if (!f.started) f.seen_as = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(f.seen_as, f.started ? 1 : 0);  // what is before the launch is before all threads
  f.started = true;
  swapcontext(&scheduler, &f.start);
}
#else
inline void to_scheduler() {
  if (!_setjmp(fiber().at)) _longjmp(turn, 1);
}
inline void resume() {
  if (_setjmp(turn)) return;
  Fiber& f = fiber();
  if (!f.started) {
    f.started = true;
    setcontext(&f.start);
  }
  _longjmp(f.at, 1);
}
#endif
inline void pass_turn(bool for_lanes) {
  const Unseen machinery;
  waits_for_lanes = for_lanes;
  to_scheduler();
}
inline uint8_t* shared_memory() { return cta().smem; }

inline const Operands* exchange(const Operands& mine) {
  const Unseen machinery;
  const int lane = threadIdx.x % kLanes, first = threadIdx.x - lane;
  Cta& c = cta();
  Operands* given = c.warps[threadIdx.x / kLanes].given[c.fibers[threadIdx.x].exchanges++ % 2];
  given[lane] = mine;
  const unsigned count = c.fibers[threadIdx.x].exchanges;
  idle = 0;
  const auto missing = [&] {
    for (int i = 0; i < kLanes; i++)
      if (c.fibers[first + i].exchanges < count) return true;
    return false;
  };
  while (missing()) pass_turn(true);
  return given;
}
// Returns the barrier's phase, which is over once it has changed.
inline unsigned named_barrier_arrive(int id, int threads) {
  const Unseen machinery;
  NamedBarrierState& barrier = cta().barriers[id];
  const unsigned phase = barrier.phase;
  idle = 0;
  release(&barrier.order[phase % 2]);
  if (++barrier.arrived == threads) barrier.arrived = 0, barrier.phase++;
  return phase;
}
inline void named_barrier_sync(int id, int threads) {
  const Unseen machinery;
  NamedBarrierState& barrier = cta().barriers[id];
  const unsigned phase = named_barrier_arrive(id, threads);
  while (barrier.phase == phase) pass_turn(false);
  acquire(&barrier.order[phase % 2]);
}
inline void named_barrier_sync_unaligned(int id, int threads) { named_barrier_sync(id, threads); }
inline void __syncthreads() { named_barrier_sync(0, Config::kThreads); }
inline void __syncwarp() {
  const Unseen machinery;
  const char* order = &cta().warps[threadIdx.x / kLanes].order[fiber().exchanges % 2];
  release(order);
  exchange({});
  acquire(order);
}

inline void fiber_main() {
  kernel();
  const Unseen machinery;
  fiber().done = true;
  idle = 0;
  release(&grid);
  to_scheduler();
}

// Runs `body` on a grid of CTAs. Aborts when no thread can go on.
inline void run_grid(int ctas, std::function<void()> body) {
  constexpr size_t kStack = 256 << 10;
  kernel = std::move(body);
  gridDim.x = ctas;
  grid = std::vector<Cta>(ctas);
  std::vector<std::unique_ptr<char[]>> stacks;
  for (Cta& c : grid) {
    c.smem = static_cast<uint8_t*>(aligned_alloc(1024, Config::kSmemLimit));
    memset(c.smem, 0xff, Config::kSmemLimit);
    stacks.emplace_back(new char[kStack * Config::kThreads]);
    for (int i = 0; i < Config::kThreads; i++) {
      ucontext_t& start = c.fibers[i].start;
      getcontext(&start);
      start.uc_stack.ss_sp = stacks.back().get() + kStack * i;
      start.uc_stack.ss_size = kStack;
      start.uc_link = nullptr;
      makecontext(&start, fiber_main, 0);
    }
  }
#ifdef __SANITIZE_THREAD__
  scheduler_seen_as = __tsan_get_current_fiber();
#endif
  const Unseen machinery;
  for (bool running = true; running;) {
    running = false;
    for (unsigned b = 0; b < grid.size(); b++) {
      for (int w = 0; w < Config::kWarps; w++) {
        for (bool again = true; again;) {  // while lanes wait for each other and for nothing else, stay with the warp
          bool waits_otherwise = false;
          again = false;
          for (int lane = 0; lane < kLanes; lane++) {
            if (grid[b].fibers[kLanes * w + lane].done) continue;
            blockIdx.x = b, threadIdx.x = kLanes * w + lane;
            waits_for_lanes = false;
            resume();
            (waits_for_lanes ? again : waits_otherwise) = true;
            running = true;
          }
          again &= !waits_otherwise;
          if (again && ++idle > 1000) break;
        }
      }
    }
    if (running && ++idle > 2000) {
      fprintf(stderr, "no thread can go on\n");
      for (unsigned b = 0; b < grid.size(); b++)
        for (auto& [id, barrier] : grid[b].barriers)
          fprintf(stderr, "CTA %u barrier %d: %d arrived\n", b, id, barrier.arrived);
      abort();
    }
  }
  acquire(&grid);
}

// ---- warp-wide instructions ----

template <class T>
auto gather(T value) {
  Operands mine = {};
  memcpy(&mine, &value, sizeof(T));
  const Operands* given = exchange(mine);
  return [given](int lane) { return bits_of<T>(given[lane]); };
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  uint32_t found = 0;
  const uint64_t bytes = (uint64_t)y << 32 | x;
  for (int i = 0; i < 4; i++) found |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return found;
}
template <class T>
void __stcg(T* p, T value) {
  *p = value;
}
inline unsigned atomicAdd(unsigned* p, unsigned value) {
  const Unseen machinery;
  release(p), acquire(p);  // relaxed in CUDA: what depends on its result is after it all the same
  return (*p += value) - value;
}
inline void atomicAdd(float* p, float value) { *p += value; }  // seen as a plain access: the order must be fixed

// ---- wrappers of PTX ----

inline void counter_arrive(unsigned* counter) {
  const Unseen machinery;
  release(counter);
  ++*counter, idle = 0;
}
inline bool counter_arrive_last(unsigned* counter, unsigned count) { return atomicAdd(counter, 1) == count - 1; }
inline unsigned load_acquire(const unsigned* counter) {
  const Unseen machinery;
  const unsigned seen = *counter;
  acquire(counter);
  pass_turn(false);
  return seen;
}
inline void counter_wait(const unsigned* counter, unsigned count) {
  while (load_acquire(counter) < count) {
  }
}
inline constexpr auto ld_v4 = [](const void* p) { return *static_cast<const uint4*>(p); };
inline constexpr auto ld_v2 = [](const void* p) { return *static_cast<const uint2*>(p); };
inline constexpr auto ld_f32 = [](const float* p) { return *p; };
inline constexpr auto ld_global_v2 = ld_v2;
inline constexpr auto ld_global_v4 = ld_v4, ld_global_cg_v4 = ld_v4;
inline constexpr auto ld_global_f32 = ld_f32, ld_global_cg_f32 = ld_f32;
inline void prefetch_l2(const void*) {}
inline uint64_t l2_evict_first() { return 0; }
inline uint64_t l2_evict_unchanged() { return 0; }

// By default with NaN in E4M3, 480 if unpacked by integers.
inline void spoil(uint8_t* to, size_t bytes, int value = 0x7f) {
  written(to, bytes);
  memset(to, value, bytes);
}

inline void cp_async(void* smem, const void* gmem, size_t bytes) {
  const Unseen machinery;
  if ((uintptr_t)smem % bytes || (uintptr_t)gmem % bytes) fprintf(stderr, "cp.async: misaligned\n"), abort();
  fiber().groups.back().push_back({static_cast<uint8_t*>(smem), static_cast<const uint8_t*>(gmem), bytes});
}
inline void cp_async_16(void* smem, const void* gmem) {
  spoil(static_cast<uint8_t*>(smem), 16);
  cp_async(smem, gmem, 16);
}
inline void cp_async_4(void* smem, const void* gmem) {
  spoil(static_cast<uint8_t*>(smem), 4, 0xff);  // NaN, as fp32 and as four scales
  cp_async(smem, gmem, 4);
}
inline void cp_async_commit() {
  const Unseen machinery;
  fiber().groups.emplace_back();
}
template <int kPending>
void cp_async_wait() {
  auto& groups = fiber().groups;
  while (groups.size() > kPending + 1) {
    for (const Copy& copy : groups.front()) {
      written(copy.to, copy.bytes);
      const Unseen machinery;
      memcpy(copy.to, copy.from, copy.bytes);
    }
    const Unseen machinery;
    groups.erase(groups.begin());
  }
}

inline void cp_async_wait_all() { cp_async_commit(), cp_async_wait<0>(); }

// An mbarrier of one arrival. What its copies bring comes when somebody waits for it.
struct Mbarrier {
  std::vector<Copy> pending;
  unsigned completed = 0;
  long long expected = 0;
  bool armed = false;
};
inline std::map<uint64_t*, Mbarrier> mbarriers;
inline void mbar_init(uint64_t* bar, int arrivals) {
  const Unseen machinery;
  if (arrivals != 1) abort();
  mbarriers[bar] = {};
}
inline void fence_barrier_init() {}
inline void fence_proxy_async_shared() {}
inline void fence_proxy_async_global() {}
inline void prefetch_tma_descriptor(const void*) {}
inline void pdl_wait() {}
inline void pdl_launch_dependents() {}
inline void mbar_arrive_expect_tx(uint64_t* bar, int bytes) {
  const Unseen machinery;
  Mbarrier& of = mbarriers.at(bar);
  if (of.armed) fprintf(stderr, "mbarrier: armed twice in a phase\n"), abort();
  of.armed = true, of.expected = bytes;
}
// Barrier's methods that the kernel does not call.
inline void mbar_arrive(uint64_t*) { abort(); }
inline void mbar_expect_tx(uint64_t*, int) { abort(); }
template <class... Read>
void release_stage(uint64_t*, const Read&...) {
  abort();
}
template <class... Read>
void release_stage_of_warp(uint64_t*, const Read&...) {
  abort();
}
template <class... Read>
uint32_t read_bits(const Read&...) {
  return 0;
}
template <class... Read>
void refill_stage(uint64_t* full, int bytes, const Read&...) {
  mbar_arrive_expect_tx(full, bytes);
}
inline void mbar_wait(uint64_t* bar, int phase) {
  const Unseen machinery;
  for (;;) {
    Mbarrier& of = mbarriers.at(bar);
    if ((of.completed & 1) != (unsigned)phase) return acquire(bar);
    if (of.armed && of.expected == 16 * (long long)of.pending.size()) {
      for (const Copy& copy : of.pending) memcpy(copy.to, copy.from, 16);
      of = {{}, of.completed + 1, 0, false};
      continue;
    }
    pass_turn(false);
  }
}
// A box of 64 rows of 128 bytes, or with MXFP4 weights of 64, swizzled.
template <class Source>
void tma_load(void* smem, uint64_t* bar, Source source) {
  uint8_t* to = static_cast<uint8_t*>(smem);
  spoil(to, Config::kWeightTileBytes);
  const Unseen machinery;
  release(bar);
  if ((uintptr_t)to % 1024) fprintf(stderr, "TMA: misaligned\n"), abort();
  constexpr int kWidth = Config::kTileRowBytes;
  for (int row = 0; row < Config::kWeightTileRows; row++)
    for (int chunk = 0; chunk < kWidth / 16; chunk++) {
      const int place = chunk ^ (kWidth == 128 ? row % 8 : row / 2 % 4);
      mbarriers.at(bar).pending.push_back({to + row * kWidth + place * 16, source(row) + 16 * chunk});
    }
}
constexpr size_t row_bytes(size_t values) { return values / Config::kValuesPerByte; }
inline void tma_load_2d(void* smem, const void* map, uint64_t* bar, int c0, int c1, uint64_t) {
  const uint8_t* base = static_cast<const CUtensorMap*>(map)->base;
  tma_load(smem, bar, [=](int row) { return base + (c1 + row) * row_bytes(kIntermediate) + c0; });
}
inline void tma_load_5d(void* smem, const void* map, uint64_t* bar, int c0, int c1, int c2, int c3, int c4, uint64_t) {
  const uint8_t* base = static_cast<const CUtensorMap*>(map)->base;
  if (c1 || c2) abort();
  tma_load(smem, bar, [=](int row) {
    const size_t up_or_gate = row / 8 % 2, column = (c3 + row / 16) * 8 + row % 8;
    return base + ((size_t)c4 * 2 * kIntermediate + up_or_gate * kIntermediate + column) * row_bytes(kHidden) + c0;
  });
}

// ---- numbers ----

inline const std::vector<float> kHalves = [] {
  std::vector<float> values(1 << 16);
  for (size_t bits = 0; bits < values.size(); bits++) values[bits] = std::bit_cast<_Float16>((uint16_t)bits);
  return values;
}();
NOT_INSTRUMENTED inline float of_half(uint16_t bits) { return kHalves[bits]; }  // to convert each time takes thrice as long
inline uint16_t cvt_f32_to_f16(float value) { return std::bit_cast<uint16_t>((_Float16)value); }
inline uint32_t pack_fp16(float low, float high) { return cvt_f32_to_f16(low) | (uint32_t)cvt_f32_to_f16(high) << 16; }
inline uint32_t cvt_e4m3x2_to_f16x2(uint16_t pair) {
  uint32_t halves = 0;
  for (int i = 0; i < 2; i++) {
    const int byte = pair >> 8 * i & 0xff, exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float size = (byte & 0x7f) == 0x7f ? NAN
                       : exponent == 0       ? std::ldexp((float)mantissa, -9)
                                             : std::ldexp(8.0f + mantissa, exponent - 10);
    halves |= (uint32_t)cvt_f32_to_f16(byte >> 7 ? -size : size) << 16 * i;
  }
  return halves;
}
inline uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  return pack_fp16(of_half(a) * of_half(b), of_half(a >> 16) * of_half(b >> 16));
}
// As PTX lays it out. d is of registers, and what the lanes exchange is the model's.
NOT_INSTRUMENTED inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const Operands* given = exchange({{a[0], a[1], a[2], a[3], b0, b1}});
  const int g = threadIdx.x % kLanes / 4, t = threadIdx.x % 4;
  for (int c = 0; c < 4; c++) {
    const int upper = c / 2, column = 2 * t + c % 2;
    for (int k = 0; k < 16; k++) {
      const int quad = k % 8 / 2, shift = k % 2 * 16, late = k / 8;
      const uint32_t of_a = given[4 * g + quad].word[2 * late + upper], of_b = given[4 * column + quad].word[4 + late];
      d[c] += of_half(of_a >> shift) * of_half(of_b >> shift);
    }
  }
}
inline float swiglu_of_halves(float first, float second) {
  const float up = kGateFirst ? second : first, gate = kGateFirst ? first : second;
  const float limit = kSwigluLimit > 0 ? kSwigluLimit : INFINITY, x = kClampAfterSilu ? gate : std::min(gate, limit);
  const float s = x / (1.0f + std::exp(-kSwigluAlpha * x));
  return (kClampAfterSilu ? std::min(s, limit) : s) * (std::clamp(up, -limit, limit) + kSwigluUpOffset);
}
inline unsigned pack_bf16(float low, float high) {
  const auto round = [](float value) {
    const unsigned bits = __float_as_uint(value);
    return std::isnan(value) ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return round(low) | round(high) << 16;
}
// As numerics.cuh has them.
inline float fp16_scale(float bound) {
  const int exponent = (__float_as_int(bound) >> 23) - 14;
  return __int_as_float(max(exponent, 1) << 23);
}
inline float inverse_power_of_two(float scale) { return __int_as_float((254 << 23) - __float_as_int(scale)); }
