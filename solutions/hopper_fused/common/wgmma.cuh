// wgmma: D[64, N] (+)= A[64, 32] . B[N, 32]^T in FP8, both operands K-major in shared memory, for each N that is used.
// D of thread (warp, lane): d[4 j + 2 h + p] is row 16 warp + 8 h + lane / 4, column 8 j + 2 (lane % 4) + p.
#pragma once
#include <cstdint>

template <int N>
struct Wgmma;

// N, the accumulator's names, the names of the operands' descriptors and of the flag, the accumulator's values
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
WGMMA(128, NAMES0 ", " NAMES1 ", " NAMES2 ", " NAMES3 ", " NAMES4 ", " NAMES5 ", " NAMES6 ", " NAMES7, "%64", "%65", "%66", D32(0), D32(32))
#undef WGMMA
#undef WGMMA
