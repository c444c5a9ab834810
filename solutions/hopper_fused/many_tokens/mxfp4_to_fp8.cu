// mxfp4_to_fp8: a CTA converts blocks of 128 x 128, one after the other; a thread two groups of 32, 16 bytes each.
//
// A block's scale is 2^-6 of its largest group's, so that group's values, up to 6, become 448 at most. E2M1's are
// multiples of 1/2, and E4M3 has all multiples of 2^-9: groups down to 2^-14 of the largest keep every bit.
#include "mxfp4_to_fp8.cuh"

#include "layer_sizes.cuh"
#include "threads.cuh"

constexpr int kConvertThreads = 256;
constexpr int kMost = 6, kLeast = -8;  // powers of two that a group's values are multiplied with
constexpr int kRowGroups = kBlockK / 32, kBlockGroups = kBlockK * kRowGroups;
constexpr int kThreadGroups = kBlockGroups / kConvertThreads;

// Bytes of E4M3 for E2M1's eight magnitudes, times a power of two.
struct Magnitudes {
  uint32_t low, high;
};
__device__ __forceinline__ uint32_t e4m3_of(int half_steps, int power) {  // of half_steps / 2 * 2^power, exactly
  if (half_steps == 0) return 0;
  const int top = 31 - __clz(half_steps), exponent = top - 1 + power;  // value: 1.x * 2^exponent
  if (exponent >= -6) return (uint32_t)((exponent + 7) << 3 | (half_steps << 3 >> top & 7));
  return (uint32_t)(half_steps << (power + 8));  // subnormal: multiples of 2^-9
}
__device__ __forceinline__ Magnitudes magnitudes_of(int power) {
  return {e4m3_of(0, power) | e4m3_of(1, power) << 8 | e4m3_of(2, power) << 16 | e4m3_of(3, power) << 24,
          e4m3_of(4, power) | e4m3_of(6, power) << 8 | e4m3_of(8, power) << 16 | e4m3_of(12, power) << 24};
}

// 8 values, in order of K.
__device__ __forceinline__ uint2 convert8(uint32_t packed, const Magnitudes& magnitudes) {
  const uint32_t low = __byte_perm(packed, 0, 0x1100), high = __byte_perm(packed, 0, 0x3322);  // each byte twice
  const uint32_t codes = packed & 0x77777777u;
  const auto sign = [](uint32_t twice) { return ((twice << 4) & 0x00800080u) | (twice & 0x80008000u); };
  return {__byte_perm(magnitudes.low, magnitudes.high, codes) | sign(low),
          __byte_perm(magnitudes.low, magnitudes.high, codes >> 16) | sign(high)};
}

__global__ void __launch_bounds__(kConvertThreads) mxfp4_to_fp8(const Mxfp4Matrix m, unsigned* out_of_range) {
  __shared__ Magnitudes tables[kMost - kLeast + 1];
  __shared__ int largest[2], least[2];
  if (threadIdx.x <= kMost - kLeast) tables[threadIdx.x] = magnitudes_of(kLeast + (int)threadIdx.x);
  if (threadIdx.x < 2) largest[threadIdx.x] = -1, least[threadIdx.x] = 256;
  __syncthreads();
  const int k_blocks = m.k / kBlockK, blocks = m.rows / kBlockK * k_blocks;
  int turn = 0;
  for (int block = blockIdx.x; block < blocks; block += gridDim.x, turn ^= 1) {
    const int first_row = block / k_blocks * kBlockK, k_block = block % k_blocks;
    uint4 packed[kThreadGroups];
    int exponent[kThreadGroups];
    int most = -1, fewest = 256;
#pragma unroll
    for (int i = 0; i < kThreadGroups; i++) {
      const int group = i * kConvertThreads + threadIdx.x;
      const size_t row = first_row + group / kRowGroups;
      const int at = k_block * kRowGroups + group % kRowGroups;
      packed[i] = __ldcs(reinterpret_cast<const uint4*>(m.packed + row * (m.k / 2) + at * 16));
      exponent[i] = m.scales[row * (m.k / 32) + at];
      const bool zeros = ((packed[i].x | packed[i].y | packed[i].z | packed[i].w) & 0x77777777u) == 0;
      if (zeros && exponent[i] != 255) continue;
      most = max(most, exponent[i]);
      fewest = min(fewest, exponent[i]);
    }
    most = __reduce_max_sync(kFullWarp, most);
    fewest = __reduce_min_sync(kFullWarp, fewest);
    if (threadIdx.x % kWarp == 0) {
      atomicMax(&largest[turn], most);
      atomicMin(&least[turn], fewest);
    }
    __syncthreads();
    const int top = largest[turn], bottom = least[turn];
    if (threadIdx.x == 0) largest[turn ^ 1] = -1, least[turn ^ 1] = 256;  // before the next turn's barrier
    const bool fits = top < 255 && (top < 0 || (top > kMost && top - bottom <= kMost - kLeast));
    if (threadIdx.x == 0) {
      m.fp8_scales[block] = top < 0 ? 1.0f : __uint_as_float((uint32_t)max(top - kMost, 1) << 23);
      if (!fits) *out_of_range = 1;
    }
#pragma unroll
    for (int i = 0; i < kThreadGroups; i++) {
      const int group = i * kConvertThreads + threadIdx.x;
      const size_t row = first_row + group / kRowGroups;
      const int power = min(max(exponent[i] - top + kMost, kLeast), kMost);
      const Magnitudes magnitudes = tables[power - kLeast];
      const uint2 a = convert8(packed[i].x, magnitudes), b = convert8(packed[i].y, magnitudes);
      const uint2 c = convert8(packed[i].z, magnitudes), d = convert8(packed[i].w, magnitudes);
      auto* to = reinterpret_cast<uint4*>(m.fp8 + row * m.k + k_block * kBlockK + group % kRowGroups * 32);
      to[0] = {a.x, a.y, b.x, b.y};
      to[1] = {c.x, c.y, d.x, d.y};
    }
    __syncthreads();  // the next turn's maxima are reset
  }
}

cudaError_t launch_mxfp4_to_fp8(const Mxfp4Matrix& matrix, unsigned* out_of_range, int sms, cudaStream_t stream) {
  mxfp4_to_fp8<<<8 * sms, kConvertThreads, 0, stream>>>(matrix, out_of_range);
  return cudaGetLastError();
}
