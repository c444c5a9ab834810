// swap_ab_mainloop: the main loop of a swap-AB tile, of both GEMMs. wgmma's M is weight rows: a warpgroup has 128, as
// two m64, one after the other; its N is the tile's rows.
#pragma once
#include "common/cuda/pipeline/barriers.cuh"
#include "hopper_fused/many_tokens/grouped_gemm.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/ptx/wgmma.cuh"

namespace hopper_fused {

// sum[m64][...] += accum * scales, for all K blocks. read(k, stage) returns the K block's scales w of the thread's two
// weight rows, 8 apart; observe(a, w) is called with them and with a, those of its rows of A: gemm2 bounds its sums so.
// kFence: A arrives by cp.async, which is not in the async proxy.
template <int N, int kParts, int kNumKBlocks, bool kFence, class Smem, class Read, class Observe>
__device__ __forceinline__ void swap_ab_mainloop(
    Smem& smem, typename Smem::Pipeline& pipe, float (&sum)[2][N / 2], int warpgroup, Read read, Observe observe) {
  float accum[N / 2];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[m][i] = 0.0f;
  for (int k = 0; k < kNumKBlocks; k++, pipe.advance()) {
    const int stage = pipe.stage;
    smem.full[stage].wait(pipe.phase);
    const float2 w = read(k, stage);
    if constexpr (kFence) fence_proxy_async_shared();
    float2 a[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      a[j] = *reinterpret_cast<const float2*>(smem.a_scale[stage] + 8 * j + 2 * (threadIdx.x % kQuad));
    observe(a, w);
#pragma unroll
    for (int m = 0; m < 2; m++) {
      warpgroup_arrive();
#pragma unroll
      for (int part = 0; part < kParts; part++)  // the parts have one scale, hence one accumulator
        mma_k_block<N>(accum, make_smem_desc(smem.w[stage] + (2 * warpgroup + m) * kMmaM * kBlockK, kAtomBytes),
                       make_smem_desc(smem.a[stage][part], kAtomBytes), part == 0);
      warpgroup_commit_batch();
      warpgroup_wait<0>();
      warpgroup_fence_operand(accum);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        sum[m][4 * j + 0] += accum[4 * j + 0] * (a[j].x * w.x);
        sum[m][4 * j + 1] += accum[4 * j + 1] * (a[j].y * w.x);
        sum[m][4 * j + 2] += accum[4 * j + 2] * (a[j].x * w.y);
        sum[m][4 * j + 3] += accum[4 * j + 3] * (a[j].y * w.y);
      }
    }
    cluster_consumer_release(smem, stage, a, w);
  }
}

}  // namespace hopper_fused
