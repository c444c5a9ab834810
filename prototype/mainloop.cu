// Stand-alone main loops: cycles a K step, FLOP/s, weights GB/s under the power limit. No epilogue.
#include <cstdio>
#include <cuda_runtime.h>
#include <cuda_fp8.h>
#include "wg.cuh"
#define CK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)
__device__ __forceinline__ uint32_t sa(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void init(uint64_t* b, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sa(b)), "r"(n)); }
__device__ __forceinline__ void expect(uint64_t* b, int n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sa(b)), "r"(n) : "memory"); }
__device__ __forceinline__ void wait(uint64_t* b, int ph) { asm volatile("{\n.reg .pred p;\nW_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D_%=;\nbra W_%=;\nD_%=:\n}\n" ::"r"(sa(b)), "r"(ph) : "memory"); }
__device__ __forceinline__ void arrive_at(uint64_t* b, int rank) { asm volatile("{\n.reg .b32 t;\nmapa.shared::cluster.u32 t, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [t];\n}\n" ::"r"(sa(b)), "r"(rank) : "memory"); }
__device__ __forceinline__ void bulk(void* s, const void* g, int n, uint64_t* b) { asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sa(s)), "l"(g), "r"(n), "r"(sa(b)) : "memory"); }
__device__ __forceinline__ void bulk_mc(void* s, const void* g, int n, uint64_t* b, uint16_t m) { asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(sa(s)), "l"(g), "r"(n), "r"(sa(b)), "h"(m) : "memory"); }
__device__ __forceinline__ int rank_() { int r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ uint64_t desc(const void* p) { return (uint64_t)((sa(p) & 0x3FFFF) >> 4) | (1ull << 16) | ((uint64_t)(1024 >> 4) << 32) | (1ull << 62); }
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int P> __device__ __forceinline__ void wait_mma() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(P) : "memory"); }
template <int R> __device__ __forceinline__ void keep(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void step(float (&raw)[N / 2], uint64_t a, uint64_t b) {
#pragma unroll
  for (int i = 0; i < 4; i++) W<N>::mma(raw, a + 2 * i, b + 2 * i, i > 0);
  commit();
}
constexpr int kThreads = 384;
// swap: M = 128 weight rows (64 a warpgroup), N tokens as SPLIT products. CL CTAs of a cluster share the tokens' rows.
template <int N, int SPLIT, int CL, int STAGES> struct S {
  uint8_t w[STAGES][128 * 128];
  uint8_t x[STAGES][N * 128];
  float scale[STAGES][256];
  uint64_t full[STAGES], empty[STAGES];
};
template <int N, int SPLIT, int CL, int STAGES, bool PROMOTE>
__global__ void __launch_bounds__(kThreads, 1) swap_loop(const uint8_t* w, size_t w_bytes, const uint8_t* x, size_t x_bytes, const float* sc, int tiles, int steps, float* out, long long* cycles) {
  using T = S<N, SPLIT, CL, STAGES>;
  extern __shared__ __align__(1024) uint8_t raw_smem[];
  T& s = *reinterpret_cast<T*>(raw_smem);
  const int warp = threadIdx.x / 32, rank = CL > 1 ? rank_() : 0;
  if (threadIdx.x == 0) { for (int i = 0; i < STAGES; i++) init(&s.full[i], 1), init(&s.empty[i], 8 * CL); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (CL > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 256) {
      int st = 0, ph = 0; size_t at = (size_t)blockIdx.x * (w_bytes / gridDim.x) / 16384 * 16384; const size_t end = at + w_bytes / gridDim.x / 16384 * 16384, begin = at;
      size_t xa = 0; const size_t own = (size_t)(blockIdx.x / CL) * 262144 % x_bytes;
      for (int i = 0; i < tiles * steps; i++) {
        wait(&s.empty[st], ph ^ 1);
        expect(&s.full[st], 16384 + N * 128 + N * 4);
        bulk(s.w[st], w + at, 16384, &s.full[st]); at += 16384; if (at >= end) at = begin;
        const uint8_t* xs = x + (own + xa) % (x_bytes - N * 128); xa = (xa + N * 128) % 4194304;
        if (CL == 1) bulk(s.x[st], xs, N * 128, &s.full[st]);
        else { constexpr int part = N * 128 / CL / 16 * 16; const int b0 = rank * part, n = rank == CL - 1 ? N * 128 - b0 : part; bulk_mc(s.x[st] + b0, xs + b0, n, &s.full[st], (1 << CL) - 1); }
        bulk(s.scale[st], sc, N * 4, &s.full[st]);
        if (++st == STAGES) st = 0, ph ^= 1;
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int wg = __shfl_sync(~0u, warp / 4, 0);
    constexpr int H = N / SPLIT;
    float acc[N / 2]; float r0[H / 2], r1[SPLIT == 2 ? H / 2 : 1];
    int st = 0, ph = 0; float total = 0; long long t0 = clock64();
    const float up = 1.25f, gate = 0.75f;
    const auto add = [&](auto& raw, int half, int stage) {
#pragma unroll
      for (int j = 0; j < H / 8; j++) {
        float2 v = *reinterpret_cast<const float2*>(s.scale[stage] + half * H + 8 * j + 2 * (threadIdx.x % 4));
        float* a = acc + half * (H / 2) + 4 * j;
        if (PROMOTE) { a[0] += raw[4 * j] * (v.x * up); a[1] += raw[4 * j + 1] * (v.y * up); a[2] += raw[4 * j + 2] * (v.x * gate); a[3] += raw[4 * j + 3] * (v.y * gate); }
        else { a[0] = raw[4 * j]; a[1] = raw[4 * j + 1]; a[2] = raw[4 * j + 2]; a[3] = raw[4 * j + 3]; }
      }
    };
    const auto release = [&](int stage) { __syncwarp(); if (threadIdx.x % 32 < CL) arrive_at(&s.empty[stage], threadIdx.x % 32); };
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
      for (int i = 0; i < N / 2; i++) acc[i] = 0;
      if constexpr (SPLIT == 1) {
        for (int k = 0; k < steps; k++) {
          wait(&s.full[st], ph); fence();
          step<H>(r0, desc(s.w[st] + wg * 8192), desc(s.x[st]));
          wait_mma<0>(); keep(r0); add(r0, 0, st); release(st);
          if (++st == STAGES) st = 0, ph ^= 1;
        }
      } else {
        constexpr int U = UNROLL;
        for (int k = 0; k < steps; k += U) {
          wait(&s.full[st], ph);
          fence(); step<H>(r0, desc(s.w[st] + wg * 8192), desc(s.x[st]));
#pragma unroll
          for (int u = 0; u < U; u++) {
            const int now = st;
            fence(); step<H>(r1, desc(s.w[now] + wg * 8192), desc(s.x[now] + H * 128));
            wait_mma<1>(); keep(r0); add(r0, 0, now);
            if (++st == STAGES) st = 0, ph ^= 1;
            if (u + 1 < U) {
              wait(&s.full[st], ph);
              fence(); step<H>(r0, desc(s.w[st] + wg * 8192), desc(s.x[st]));
              wait_mma<1>();
            } else wait_mma<0>();
            keep(r1); add(r1, 1, now); release(now);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < N / 2; i++) total += acc[i];
    }
    if (total == 12345.678f) out[threadIdx.x] = total;
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - t0;
  }
  if (CL > 1) { __syncwarp(); asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
}
// today's tile: M = 128 tokens (64 a warpgroup), 256 weight rows as two n128, one after the other; a cluster of two shares the weights
template <int STAGES> struct SN {
  uint8_t w[STAGES][256 * 128];
  uint8_t x[STAGES][128 * 128];
  float scale[STAGES][128];
  uint64_t full[STAGES], empty[STAGES];
};
template <int STAGES, int CL>
__global__ void __launch_bounds__(kThreads, 1) normal_loop(const uint8_t* w, size_t w_bytes, const uint8_t* x, size_t x_bytes, const float* sc, int tiles, int steps, float* out, long long* cycles) {
  using T = SN<STAGES>;
  extern __shared__ __align__(1024) uint8_t raw_smem[];
  T& s = *reinterpret_cast<T*>(raw_smem);
  const int warp = threadIdx.x / 32, rank = CL > 1 ? rank_() : 0;
  if (threadIdx.x == 0) { for (int i = 0; i < STAGES; i++) init(&s.full[i], 1), init(&s.empty[i], 8 * CL); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (CL > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 256) {
      int st = 0, ph = 0; const int c = blockIdx.x / CL, cs = gridDim.x / CL; size_t at = (size_t)c * (w_bytes / cs) / 32768 * 32768; const size_t end = at + w_bytes / cs / 32768 * 32768, begin = at;
      size_t xa = 0; const size_t own = (size_t)blockIdx.x * 262144 % x_bytes;
      for (int i = 0; i < tiles * steps; i++) {
        wait(&s.empty[st], ph ^ 1);
        expect(&s.full[st], 32768 + 16384 + 512);
        if (CL == 1) bulk(s.w[st], w + at, 32768, &s.full[st]); else bulk_mc(s.w[st] + rank * 16384, w + at + rank * 16384, 16384, &s.full[st], 3);
        at += 32768; if (at >= end) at = begin;
        bulk(s.x[st], x + (own + xa) % (x_bytes - 16384), 16384, &s.full[st]); xa = (xa + 16384) % 4194304;
        bulk(s.scale[st], sc, 512, &s.full[st]);
        if (++st == STAGES) st = 0, ph ^= 1;
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int wg = __shfl_sync(~0u, warp / 4, 0), row = wg * 64 + warp % 4 * 16 + threadIdx.x % 32 / 4;
    float acc[128], raw[64]; int st = 0, ph = 0; float total = 0; long long t0 = clock64();
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
      for (int i = 0; i < 128; i++) acc[i] = 0;
      for (int k = 0; k < steps; k++) {
        wait(&s.full[st], ph);
        const float a = s.scale[st][row], b = s.scale[st][row + 8];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          fence(); step<128>(raw, desc(s.x[st] + wg * 8192), desc(s.w[st] + half * 16384)); wait_mma<0>(); keep(raw);
          if (half == 1) { __syncwarp(); if (threadIdx.x % 32 < CL) arrive_at(&s.empty[st], threadIdx.x % 32); }
          const float f[2][2] = {{a * 1.25f, b * 1.25f}, {a * .75f, b * .75f}};
#pragma unroll
          for (int i = 0; i < 64; i++) acc[half * 64 + i] += raw[i] * f[i / 4 % 2][i / 2 % 2];
        }
        if (++st == STAGES) st = 0, ph ^= 1;
      }
#pragma unroll
      for (int i = 0; i < 128; i++) total += acc[i];
    }
    if (total == 12345.678f) out[threadIdx.x] = total;
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - t0;
  }
  if (CL > 1) { __syncwarp(); asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
}
__global__ void fill(uint8_t* p, size_t n, unsigned seed) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    unsigned h = (unsigned)i * 2654435761u + seed; float v = 0;
    for (int k = 0; k < 4; k++) { h ^= h << 13; h ^= h >> 17; h ^= h << 5; v += (h & 0xffff) / 65536.0f - 0.5f; }
    p[i] = __nv_cvt_float_to_fp8(v * 1.7f, __NV_SATFINITE, __NV_E4M3);
  }
}
uint8_t *w, *x; float *sc, *out; long long* cyc; size_t wb = 1409286144, xb = 16 << 20;
template <class K> void go(const char* name, K kernel, int smem, int cl, double flops_step, double w_step, double ideal, bool l2) {
  CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  const int steps = 56, tiles = 12; cudaLaunchConfig_t c = {}; c.gridDim = 132; c.blockDim = kThreads; c.dynamicSmemBytes = smem;
  cudaLaunchAttribute a; a.id = cudaLaunchAttributeClusterDimension; a.val.clusterDim = {(unsigned)cl, 1, 1}; c.attrs = &a; c.numAttrs = 1;
  cudaEvent_t e0, e1; CK(cudaEventCreate(&e0)); CK(cudaEventCreate(&e1)); const size_t bytes = l2 ? 24 << 20 : wb;
  const auto run = [&](int n) { for (int i = 0; i < n; i++) CK(cudaLaunchKernelEx(&c, kernel, (const uint8_t*)w, bytes, (const uint8_t*)x, xb, (const float*)sc, tiles, steps, out, cyc)); };
  run(2); CK(cudaDeviceSynchronize()); CK(cudaEventRecord(e0)); run(4); CK(cudaEventRecord(e1)); CK(cudaEventSynchronize(e1)); float ms; CK(cudaEventElapsedTime(&ms, e0, e1));
  const int n = (int)(250 / (ms / 4)) + 1; run(n / 2); CK(cudaEventRecord(e0)); run(n); CK(cudaEventRecord(e1)); CK(cudaEventSynchronize(e1)); CK(cudaEventElapsedTime(&ms, e0, e1));
  long long cy[132]; CK(cudaMemcpy(cy, cyc, sizeof cy, cudaMemcpyDeviceToHost)); double m = 0; for (auto v : cy) m = v > m ? v : m;
  const double total = 132.0 * tiles * steps, s = ms / n * 1e-3;
  printf("%-46s %7.1f cycles a step, %.3f of ideal; %4.0f MHz; %5.0f TFLOP/s; weights %5.0f GB/s\n", name, m / (tiles * steps), m / (tiles * steps) / ideal, m / s / 1e6, total * flops_step / s / 1e12, total * w_step / s / 1e9); fflush(stdout);
}
template <int N, int SPLIT, int CL, int ST, bool P> void swap(bool l2 = false) {
  char name[96]; snprintf(name, 96, "128 x %d, %d product(s), rows shared by %d%s%s", N, SPLIT, CL, P ? "" : ", no promotion", l2 ? ", L2" : "");
  go(name, swap_loop<N, SPLIT, CL, ST, P>, sizeof(S<N, SPLIT, CL, ST>), CL, 2.0 * 128 * 128 * N, 16384, 4.0 * N, l2);
}
int main() {
  CK(cudaMalloc(&w, wb)); CK(cudaMalloc(&x, xb)); CK(cudaMalloc(&sc, 1024)); CK(cudaMalloc(&out, 4096)); CK(cudaMalloc(&cyc, 132 * 8));
  fill<<<1024, 256>>>(w, wb, 1); fill<<<1024, 256>>>(x, xb, 2); float one[256]; for (auto& v : one) v = 1; CK(cudaMemcpy(sc, one, 1024, cudaMemcpyHostToDevice)); CK(cudaDeviceSynchronize());
  go("256 x 128, weights shared by 2 (today's)", normal_loop<4, 2>, sizeof(SN<4>), 2, 2.0 * 256 * 128 * 128, 16384, 1024, false);
  go("256 x 128, weights not shared", normal_loop<4, 1>, sizeof(SN<4>), 1, 2.0 * 256 * 128 * 128, 32768, 1024, false);
  swap<144, 1, 1, 6, true>(); swap<144, 2, 1, 6, true>(); swap<144, 2, 2, 6, true>(); swap<144, 2, 4, 6, true>(); swap<144, 2, 2, 6, false>(); swap<144, 2, 2, 6, true>(true);
  swap<176, 2, 1, 5, true>(); swap<176, 2, 2, 5, true>(); swap<208, 1, 1, 5, true>(); swap<208, 2, 1, 5, true>(); swap<208, 2, 2, 5, true>(); swap<192, 2, 1, 5, true>(); swap<192, 2, 2, 5, true>(); swap<192, 2, 4, 5, true>(); swap<208, 2, 2, 5, false>(); swap<208, 2, 2, 5, true>(true); swap<128, 2, 2, 6, true>();
}
