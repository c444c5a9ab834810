// wgmma_registers: FP8 wgmma with A in registers, for each N that is used. Thread (warp, lane) has of A's row
// kWarpRows warp + lane / kQuad in a[0] K 4 (lane % kQuad) to + 3, in a[2] 16 more; in a[1] and a[3] those of the row
// 8 below.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/wgmma.cuh"

template <int N>
struct WgmmaRegisters;

#define WGMMA_REGISTERS(N, NAMES, A0, A1, A2, A3, B, FLAG, ...)                                                       \
  template <>                                                                                                          \
  struct WgmmaRegisters<N> {                                                                                           \
    static __device__ __forceinline__ void mma(                                                                        \
        float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {                                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " FLAG                                                            \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" NAMES "}, {" A0 ", " A1 ", " A2        \
                   ", " A3 "}, " B ", p, 1, 1;\n}\n"                                                                   \
                   : __VA_ARGS__                                                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                             \
    }                                                                                                                  \
  };
WGMMA_REGISTERS(8, "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "%8", "%9", D4(0))
WGMMA_REGISTERS(16, NAMES0, "%8", "%9", "%10", "%11", "%12", "%13", D8(0))
WGMMA_REGISTERS(32, NAMES0 ", " NAMES1, "%16", "%17", "%18", "%19", "%20", "%21", D16(0))
WGMMA_REGISTERS(64, NAMES0 ", " NAMES1 ", " NAMES2 ", " NAMES3, "%32", "%33", "%34", "%35", "%36", "%37", D32(0))
WGMMA_REGISTERS(96, NAMES0 ", " NAMES1 ", " NAMES2 ", " NAMES3 ", " NAMES4 ", " NAMES5, "%48", "%49", "%50", "%51", "%52",
                "%53", D32(0), D16(32))
WGMMA_REGISTERS(128, NAMES0 ", " NAMES1 ", " NAMES2 ", " NAMES3 ", " NAMES4 ", " NAMES5 ", " NAMES6 ", " NAMES7, "%64",
                "%65", "%66", "%67", "%68", "%69", D32(0), D32(32))
#undef WGMMA_REGISTERS
