// many_gemm2: Y = W2 . h^T for all rows, in bf16; h's scales carry the routing weights.
//
//   warp 8        loads: weights by TMA, half a tile each block to both where they are shared; h by bulk copy.
//                 The first weights are on their way while the last blocks of gemm1 are at work
//   warps 0..7    two warpgroups: products, then bf16 through shared memory into y, in whole lines
#include "many_gemm2_narrow.cuh"
#include "many_gemm2_wide.cuh"

template <int kTerms>
__device__ __forceinline__ void load_many2(Smem2<kTerms>& s, const CUtensorMap& map, const ManyArgs& a, int rank) {
  constexpr int kStages = Smem2<kTerms>::kStages;
  const uint64_t first = policy_evict_first(), last = policy_evict_last();
  const bool copies = threadIdx.x % 32 == 0;
  int ahead = kStages;  // steps of the first tile whose weights are on their way before the kernel before this one is over
  Ring<kStages> ring;
  Item item;
  for (Walk walk(s.work, a.y_columns / kTileWeights, rank); walk.take(item); ahead = 0) {
    const int weight_row = item.expert * kHidden + a.first_column + item.column * kTileWeights;
    const auto load_weights = [&](int k, int slot) {
      uint64_t* full = &s.full[slot];
      mbar_expect(full, kManySlotW);
      if (item.shared) {
        tma_2d_multicast(s.w[slot] + rank * kManySlotW / 2, &map, full, k * kBlock, weight_row + rank * 128, 3, first);
      } else {
        for (int half = 0; half < 2; half++)
          tma_2d(s.w[slot] + half * kManySlotW / 2, &map, full, k * kBlock, weight_row + half * 128, first);
      }
    };
    if (ahead > 0) {
      for (int k = 0; copies && k < ahead; k++) load_weights(k, k);
      wait_for_previous();
      let_next_begin();
      fence_async_global();  // scales were stored by ordinary stores
    }
    if (copies) {
      const int first_row = s.work.first_row[item.expert], rows = s.work.rows[item.expert];
      const uint8_t* h = a.h + (size_t)first_row * kInter * kTerms + item.first * kBlock;
      const float* scale = a.h_scale + (size_t)first_row * kK2 + item.first;
      for (int k = 0; k < kK2; k++, ring.next()) {
        const int slot = ring.slot;
        uint64_t* full = &s.full[slot];
        mbar_wait(&s.empty[slot], ring.phase ^ 1);
        if (k >= ahead) load_weights(k, slot);
        mbar_arrive_expect(full, item.n * (kTerms * kBlock + 4));
        for (int term = 0; term < kTerms; term++)
          bulk_copy(s.rows[slot][term], h + (size_t)(k * kTerms + term) * rows * kBlock, item.n * kBlock, full, last);
        bulk_copy(s.scales[slot], scale + (size_t)k * rows, item.n * 4, full, last);
      }
    }
    __syncwarp();
  }
}

template <int kTerms>
__global__ void __launch_bounds__(kManyThreads, 1)
    many_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs a) {
  using Smem = Smem2<kTerms>;
  Smem& s = begin_many<Smem>(a.counters, 1);
  const int rank = cluster_rank(), warp = threadIdx.x / 32;
  if (warp >= kConsumers / 32) {
    registers_down<56>();
    if (warp == kConsumers / 32) load_many2<kTerms>(s, map, a, rank);
  } else {
    registers_up<224>();
    wait_for_previous();  // in blocks without a tile too: this kernel must not be over before the one before it
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    Ring<Smem::kStages> ring;
    Item item;
    for (Walk walk(s.work, a.y_columns / kTileWeights, rank); walk.take(item);) {
      const int row = s.work.first_row[item.expert] + item.first, column = item.column * kTileWeights;
      const float* scale = a.w2_scale + (size_t)(item.expert * kK1 + (a.first_column + column) / kBlock) * kK2;
      uint16_t* y = a.y + (size_t)row * a.y_columns + column;
      if (item.wide) gemm2_wide<kTerms>(s, ring, item, scale, y, a.y_columns, warpgroup);
      else gemm2_narrow<kTerms>(s, ring, item, scale, y, a.y_columns, warpgroup);
    }
  }
  __syncwarp();
  cluster_sync();  // a block that is gone cannot be told that a slot is free
}

template <int kTerms>
static cudaError_t prepare() {
  return cudaFuncSetAttribute(many_gemm2<kTerms>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem2<kTerms>));
}
cudaError_t prepare_many_gemm2() {
  const cudaError_t error = prepare<1>();
  return error != cudaSuccess ? error : prepare<2>();
}

cudaError_t launch_many_gemm2(const ManyArgs& a, const CUtensorMap& w2, int terms, int blocks, cudaStream_t stream) {
  return terms == 1
             ? launch_next(many_gemm2<1>, blocks, kManyThreads, kCluster, sizeof(Smem2<1>), stream, w2, a)
             : launch_next(many_gemm2<2>, blocks, kManyThreads, kCluster, sizeof(Smem2<2>), stream, w2, a);
}
