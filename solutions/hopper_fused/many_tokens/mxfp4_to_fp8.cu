// mxfp4_to_fp8: a CTA converts four blocks of 128 x 128 that are neighbours in K at a time: 256 bytes of 128 rows, so that
// memory sees long pieces. A thread has a group of 32, 16 bytes, of each of 8 rows, all of which it requests at once.
//
// A block's scale is 2^-6 of its largest group's, so that group's values, up to 6, become 448 at most. E2M1's are
// multiples of 1/2, and E4M3 has all multiples of 2^-9: groups down to 2^-14 of the largest keep every bit.
#include "hopper_fused/many_tokens/mxfp4_to_fp8.cuh"

#include "common/cuda/layer_sizes.cuh"
#include "common/cuda/threads.cuh"

constexpr int kConvertThreads = 256;
constexpr int kMost = 6, kLeast = -8;  // powers of two that a group's values are multiplied with
constexpr int kAtOnceBlocks = 4, kBlockGroups = kBlockK / 32;  // blocks of a turn; groups of a row of a block
constexpr int kRowGroups = kAtOnceBlocks * kBlockGroups;       // of a row of a turn
constexpr int kRowsAtOnce = kConvertThreads / kRowGroups, kThreadRows = kBlockK / kRowsAtOnce;

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

__global__ void __launch_bounds__(kConvertThreads, 4) mxfp4_to_fp8(const Mxfp4Matrix m, unsigned* out_of_range) {
  __shared__ Magnitudes tables[kMost - kLeast + 1];
  __shared__ int largest[2][kAtOnceBlocks], least[2][kAtOnceBlocks];
  if (threadIdx.x <= kMost - kLeast) tables[threadIdx.x] = magnitudes_of(kLeast + (int)threadIdx.x);
  if (threadIdx.x < kAtOnceBlocks)
    for (int turn = 0; turn < 2; turn++) largest[turn][threadIdx.x] = -1, least[turn][threadIdx.x] = 256;
  __syncthreads();
  const int my_group = threadIdx.x % kRowGroups, my_row = threadIdx.x / kRowGroups, block = my_group / kBlockGroups;
  const int k_blocks = m.k / kBlockK, k_turns = (k_blocks + kAtOnceBlocks - 1) / kAtOnceBlocks;
  const int turns = m.rows / kBlockK * k_turns;
  int parity = 0;
  for (int turn = blockIdx.x; turn < turns; turn += gridDim.x, parity ^= 1) {
    const int row_block = turn / k_turns, k_block = turn % k_turns * kAtOnceBlocks + block;
    const bool exists = k_block < k_blocks;
    const int group = turn % k_turns * kRowGroups + my_group;
    const size_t first_row = (size_t)row_block * kBlockK + my_row;
    uint4 packed[kThreadRows];
    int exponent[kThreadRows];
    int most = -1, fewest = 256;
#pragma unroll
    for (int i = 0; i < kThreadRows; i++) {
      const size_t row = first_row + i * kRowsAtOnce;
      packed[i] = exists ? __ldcs(reinterpret_cast<const uint4*>(m.packed + row * (m.k / 2) + group * 16))
                         : make_uint4(0, 0, 0, 0);
      exponent[i] = exists ? m.scales[row * (m.k / 32) + group] : 0;
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; i++) {
      const bool zeros = ((packed[i].x | packed[i].y | packed[i].z | packed[i].w) & 0x77777777u) == 0;
      most = zeros && exponent[i] != 255 ? most : max(most, exponent[i]);
      fewest = zeros && exponent[i] != 255 ? fewest : min(fewest, exponent[i]);
    }
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {  // over the warp's lanes of the same block
      if (d >= kBlockGroups && d < kRowGroups) continue;
      most = max(most, __shfl_xor_sync(kFullWarp, most, d));
      fewest = min(fewest, __shfl_xor_sync(kFullWarp, fewest, d));
    }
    if (threadIdx.x % kWarp < kRowGroups && my_group % kBlockGroups == 0) {
      atomicMax(&largest[parity][block], most);
      atomicMin(&least[parity][block], fewest);
    }
    __syncthreads();
    const int top = largest[parity][block], bottom = least[parity][block];
    if (threadIdx.x < kAtOnceBlocks) largest[parity ^ 1][threadIdx.x] = -1, least[parity ^ 1][threadIdx.x] = 256;
    const bool fits = top < 255 && (top < 0 || (top > kMost && top - bottom <= kMost - kLeast));
    if (exists && my_row == 0 && my_group % kBlockGroups == 0) {
      m.fp8_scales[(size_t)row_block * k_blocks + k_block] =
          top < 0 ? 1.0f : __uint_as_float((uint32_t)max(top - kMost, 1) << 23);
      if (!fits) *out_of_range = 1;
    }
#pragma unroll
    for (int i = 0; i < kThreadRows && exists; i++) {
      const int power = min(max(exponent[i] - top + kMost, kLeast), kMost);
      const Magnitudes magnitudes = tables[power - kLeast];
      const uint2 a = convert8(packed[i].x, magnitudes), b = convert8(packed[i].y, magnitudes);
      const uint2 c = convert8(packed[i].z, magnitudes), d = convert8(packed[i].w, magnitudes);
      auto* to = reinterpret_cast<uint4*>(m.fp8 + (first_row + i * kRowsAtOnce) * m.k + group * 32);
      to[0] = {a.x, a.y, b.x, b.y};
      to[1] = {c.x, c.y, d.x, d.y};
    }
    __syncthreads();  // the next turn's maxima are reset
  }
}

cudaError_t launch_mxfp4_to_fp8(const Mxfp4Matrix& matrix, unsigned* out_of_range, int sms, cudaStream_t stream) {
  mxfp4_to_fp8<<<4 * sms, kConvertThreads, 0, stream>>>(matrix, out_of_range);
  return cudaGetLastError();
}
