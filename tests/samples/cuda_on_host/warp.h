// What both hosts have of CUDA's headers: types, and instructions of a warp by `gather(value)`, which publishes a lane's
// value and returns a function of the lane that gives all 32.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
using std::max;
using std::min;
using cudaError_t = int;
using cudaStream_t = void*;
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

constexpr int kLanes = 32;
int this_lane();
template <class T>
auto gather(T value);

// The first bytes of `from` as another type.
template <class T, class U>
T bits_of(const U& from) {
  T value;
  memcpy(&value, &from, sizeof(T));
  return value;
}
inline unsigned __float_as_uint(float value) { return bits_of<unsigned>(value); }
inline int __float_as_int(float value) { return bits_of<int>(value); }
inline float __uint_as_float(unsigned bits) { return bits_of<float>(bits); }
inline float __int_as_float(int bits) { return bits_of<float>(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return gather(value)(lane % kLanes);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return gather(value)(max(this_lane() - distance, 0));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return gather(value)(this_lane() ^ mask);
}
template <class Combine>
unsigned over_lanes(unsigned value, Combine combine) {
  const auto of = gather(value);
  unsigned all = 0;
  for (int lane = 0; lane < kLanes; lane++) all = combine(all, of(lane), lane);
  return all;
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return over_lanes(value, [](unsigned all, unsigned one, int lane) { return all | one << lane; });
}
inline bool __any_sync(unsigned, bool value) { return __ballot_sync(~0u, value) != 0; }
inline int __reduce_add_sync(unsigned, int value) {
  return over_lanes(value, [](unsigned all, unsigned one, int) { return all + one; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return over_lanes(value, [](unsigned all, unsigned one, int) { return max(all, one); });
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  return over_lanes(value, [](unsigned all, unsigned one, int) { return all | one; });
}
