// wgmma: FP8 wgmma, its shared-memory descriptors and fences, and the layouts of operands and accumulators.
//
// D[64, N] (+)= A[64, 32] . B[N, 32]^T in E4M3, both operands K-major in shared memory, for each N that is used.
// An operand's K step is made of atoms of 8 rows by 128 bytes in the 128-byte swizzle. Thread (warp, lane) of the
// warpgroup has in d[4 j + 2 h + p] row kWarpRows warp + 8 h + lane / kQuad, column 8 j + 2 (lane % kQuad) + p.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/smem_addr.cuh"
#include "common/cuda/pipeline/threads.cuh"

// ---- layouts ----

constexpr int kMmaM = 64;
constexpr int kMmaK = 32;                           // in FP8
constexpr int kWarpRows = kMmaM / kWarpgroupWarps;  // accumulator rows of a warp
constexpr int kQuad = 4;                            // lanes that share a row of the accumulator
constexpr int kAtomRows = 8, kAtomRowBytes = 128;   // of a swizzle atom
constexpr int kAtomBytes = kAtomRows * kAtomRowBytes;

// Offset of a byte in an atom: the 16-byte pieces of a row are permuted by the row's number.
__device__ __forceinline__ int swizzle_128b(int row, int byte) {
  return row * kAtomRowBytes + ((byte / 16 ^ row) * 16) + byte % 16;
}

// Fields of a shared-memory descriptor, in units of 16 bytes: start address, leading byte offset (from 16 bytes of K to
// the next, so 1 in a contiguous row; ignored with a swizzle), stride byte offset, and the swizzle mode.
constexpr uint64_t kDescLeading = (uint64_t)1 << 16;
constexpr int kDescStrideShift = 32;
constexpr uint64_t kDescSwizzle128B = (uint64_t)1 << 62;
constexpr int kDescMmaK = kMmaK >> 4;  // from one wgmma's K to the next

__device__ __forceinline__ uint64_t desc_address(const void* smem) {
  return (uint64_t)((smem_addr(smem) & 0x3FFFF) >> 4);
}

// Rows in swizzled atoms; `atom_stride` bytes from one atom of 8 rows to the next.
__device__ __forceinline__ uint64_t make_smem_desc(const void* smem, int atom_stride) {
  return desc_address(smem) | kDescLeading | ((uint64_t)(atom_stride >> 4) << kDescStrideShift) | kDescSwizzle128B;
}
// One row, contiguous and not swizzled, as B with N = 8: the bytes behind it stand for the seven other rows, whose
// results are not used.
__device__ __forceinline__ uint64_t make_smem_desc_row(const void* smem) {
  return desc_address(smem) | kDescLeading | ((uint64_t)1 << kDescStrideShift);
}

// ---- fences ----

// wgmma.fence: orders this warpgroup's register accesses before the wgmmas that follow.
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kPending` batches are in flight.
template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads or writes of an accumulator across this point.
template <int R>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// ---- instructions ----

template <int N>
struct Wgmma;

// N, the placeholders of the accumulator, of the two descriptors and of the flag, the accumulator's operands
#define WGMMA(N, NAMES, A, B, FLAG, ...)                                                                               \
  template <>                                                                                                          \
  struct Wgmma<N> {                                                                                                    \
    static __device__ __forceinline__ void mma(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " FLAG                                                            \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" NAMES "}, " A ", " B ", p, 1, 1;\n}\n" \
                   : __VA_ARGS__                                                                                       \
                   : "l"(a), "l"(b), "r"(accumulate));                                                                 \
    }                                                                                                                  \
  };
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define NAMES0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES7 "%56, %57, %58, %59, %60, %61, %62, %63"
WGMMA(8, "%0, %1, %2, %3", "%4", "%5", "%6", D4(0))
WGMMA(16, NAMES0, "%8", "%9", "%10", D8(0))
WGMMA(32, NAMES0 ", " NAMES1, "%16", "%17", "%18", D16(0))
WGMMA(48, NAMES0 ", " NAMES1 ", " NAMES2, "%24", "%25", "%26", D16(0), D8(16))
WGMMA(64, NAMES0 ", " NAMES1 ", " NAMES2 ", " NAMES3, "%32", "%33", "%34", D32(0))
WGMMA(128, NAMES0 ", " NAMES1 ", " NAMES2 ", " NAMES3 ", " NAMES4 ", " NAMES5 ", " NAMES6 ", " NAMES7, "%64", "%65",
      "%66", D32(0), D32(32))
#undef WGMMA
#undef WGMMA
