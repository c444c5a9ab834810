// config: what differs between architectures. build.py sets the macros for the GPU that is here; tests set them to run
// another architecture's paths on sm_90. Without any, sm_90's.
#pragma once

#ifndef MMA_FUSED_SMEM_KIB
#define MMA_FUSED_SMEM_KIB 227  // shared memory that a CTA may have: 99, 163 or 227
#endif
#ifndef MMA_FUSED_TMA
#define MMA_FUSED_TMA 1  // weights by TMA (sm_90 and later), else by cp.async
#endif
#ifndef MMA_FUSED_CVT
#define MMA_FUSED_CVT 1  // E4M3 to fp16 by cvt (sm_89 and later), else by integer operations
#endif

constexpr int kSmemLimit = MMA_FUSED_SMEM_KIB * 1024;
constexpr bool kTma = MMA_FUSED_TMA, kCvt = MMA_FUSED_CVT;

constexpr int kStages = 2;  // of 8 KiB, of each warp; three were no faster on an H200, at 256 tokens up to 3% slower
