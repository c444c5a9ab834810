// Can a cooperative launch also be a programmatic dependent launch, eagerly and in a graph? When does it start?
#include <cstdio>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
__global__ void first(unsigned long long* t, int us) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
  auto s = now(); while (now() - s < us * 1000ull) {}
  if (blockIdx.x == 0 && threadIdx.x == 0) { t[0] = s; t[1] = now(); }
}
__global__ void second(unsigned long long* t, unsigned* c, unsigned want) {
  extern __shared__ int sm[];
  auto s = now();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
  auto w = now();
  if (threadIdx.x == 0) { atomicAdd(c, 1); while (*(volatile unsigned*)c < want) {} }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) { t[2] = s; t[3] = w; t[4] = now(); }
}
#define CK(x) do { auto e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); } } while (0)
int main() {
  unsigned long long* t; unsigned* c; CK(cudaMallocManaged(&t, 64)); CK(cudaMalloc(&c, 4)); cudaStream_t st; CK(cudaStreamCreate(&st));
  CK(cudaFuncSetAttribute(second, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
  CK(cudaFuncSetAttribute(first, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
  for (int coop = 0; coop < 2; coop++) for (int pdl = 0; pdl < 2; pdl++) for (int graph = 0; graph < 2; graph++) for (int big = 0; big < 2; big++) {
    CK(cudaMemset(c, 0, 4)); 
    auto launch = [&](unsigned want) {
      cudaLaunchConfig_t a = {}; a.gridDim = 132; a.blockDim = 384; a.stream = st; a.dynamicSmemBytes = big ? 220 * 1024 : 0;
      CK(cudaLaunchKernelEx(&a, first, t, 20));
      cudaLaunchConfig_t b = a; b.dynamicSmemBytes = 220 * 1024; cudaLaunchAttribute at[2]; int n = 0;
      if (coop) { at[n].id = cudaLaunchAttributeCooperative; at[n++].val.cooperative = 1; }
      if (pdl) { at[n].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[n++].val.programmaticStreamSerializationAllowed = 1; }
      b.attrs = at; b.numAttrs = n;
      cudaError_t e = cudaLaunchKernelEx(&b, second, t, c, want); if (e) printf("launch: %s\n", cudaGetErrorString(e));
    };
    if (graph) {
      cudaGraph_t g; cudaGraphExec_t x; CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal)); launch(132); CK(cudaStreamEndCapture(st, &g));
      cudaError_t e = cudaGraphInstantiate(&x, g, 0); if (e) { printf("instantiate: %s\n", cudaGetErrorString(e)); cudaGetLastError(); continue; }
      CK(cudaGraphLaunch(x, st)); CK(cudaStreamSynchronize(st)); CK(cudaMemset(c, 0, 4)); CK(cudaGraphLaunch(x, st));
    } else { launch(132); CK(cudaStreamSynchronize(st)); CK(cudaMemset(c, 0, 4)); launch(132); }
    CK(cudaStreamSynchronize(st));
    printf("coop %d pdl %d graph %d first's smem %d: first ends at %lld ns; second starts %lld, waited until %lld, all there %lld\n", coop, pdl, graph, big, (long long)(t[1] - t[0]), (long long)(t[2] - t[1]), (long long)(t[3] - t[1]), (long long)(t[4] - t[1]));
  }
}
