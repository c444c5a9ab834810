// many_gemm2: Y = W2 . h^T for all rows, in bf16; h's scales carry the routing weights.
//
//   warp 8        draws the cluster's next tile, and loads: weights by TMA, half a tile each block to both where they are
//                 shared; h by bulk copy, as soon as gemm1 has counted it as stored
//   warps 9..11   zeros to the output of tokens without rows, which combine passes over
//   warps 0..7    two warpgroups: products, then bf16 through shared memory into y, in whole lines
//
// A block begins where one of gemm1 has ended, while others of gemm1 are at work. It cannot deadlock: all of gemm1's blocks
// have begun when the first of these does, and none of them waits for one of these.
#include "many_gemm2_narrow.cuh"
#include "many_gemm2_wide.cuh"

template <int kTerms>
__device__ __forceinline__ void load_many2(Smem2<kTerms>& s, const CUtensorMap& map, const ManyArgs& a, int rank) {
  constexpr int kStages = Smem2<kTerms>::kStages;
  const Plan plan = read_plan(&a.counters->plan);
  const int all = (plan.longs + plan.shorts) * (a.y_columns / (2 * kTileWeights));
  const bool few_share = plan.rows <= plan.experts * kFewShareRows;
  const uint64_t for_weights = few_share ? policy_evict_first() : policy_evict_unchanged();
  const uint64_t last = policy_evict_last();
  const bool copies = threadIdx.x % 32 == 0, is_first = a.first_column == 0;
  enum { kNothing, kButLast, kAll } known = kNothing;  // of h: is there
  int ahead = kStages;  // steps of the first tile whose weights are asked for before anything is waited for
  Ring<kStages> ring;
  Item item;
  for (int tile = 0; drawn_tile(s, item, a.tiles2, all, tile, rank); ahead = 0, tile++) {
    int number = 0;  // of the next tile: drawn now, as it takes its time
    if (copies && rank == 0) number = a.clusters + atomicAdd(&a.counters->drawn[a.first_column / a.y_columns], 1u);
    const int weight_row = item.expert * kHidden + a.first_column + item.column * kTileWeights;
    const auto load_weights = [&](int k, int slot) {
      uint64_t* full = &s.full[slot];
      mbar_expect(full, kManySlotW);
      if (item.shared) {
        tma_2d_multicast(s.w[slot] + rank * kManySlotW / 2, &map, full, k * kBlock, weight_row + rank * 128, 3, for_weights);
      } else {
        for (int half = 0; half < 2; half++)
          tma_2d(s.w[slot] + half * kManySlotW / 2, &map, full, k * kBlock, weight_row + half * 128, for_weights);
      }
    };
    if (ahead > 0) {
      for (int k = 0; copies && k < ahead; k++) load_weights(k, k);
      if (!is_first) wait_for_previous();  // combine has read the y that this launch writes over
      let_next_begin();
    }
    const auto wanted = item.early ? kButLast : kAll;
    if (copies && known < wanted) {
      wait_gpu(wanted == kAll ? &a.counters->stored : &a.counters->but_last, a.clusters * kCluster * (kConsumers / kWarpgroup));
      fence_async_global();  // scales were stored by ordinary stores
      known = wanted;
    }
    if (copies) {
      const int first_row = item.first_row, rows = item.rows;
      const uint8_t* h = a.h + (size_t)first_row * kInter * kTerms + item.first * kBlock;
      const float* scale = a.h_scale + (size_t)first_row * kK2 + item.first;
      const auto step = [&](int k) {
        const int slot = ring.slot;
        uint64_t* full = &s.full[slot];
        mbar_wait(&s.empty[slot], ring.phase ^ 1);
        if (k >= ahead) load_weights(k, slot);
        mbar_arrive_expect(full, item.n * (kTerms * kBlock + 4));
        for (int term = 0; term < kTerms; term++)
          bulk_copy(s.rows[slot][term], h + (size_t)(k * kTerms + term) * rows * kBlock, item.n * kBlock, full, last);
        bulk_copy(s.scales[slot], scale + (size_t)k * rows, item.n * 4, full, last);
        ring.next();
      };
#pragma unroll 1
      for (int k = 0; k < kK2 - 1; k++) step(k);
      // while consumers are busy with the steps before
      hand_on(s, rank == 0 ? tile_number(a.tiles2, all, number) : make_uint2(kNoTile, 0), tile, rank);
      step(kK2 - 1);
    }
    __syncwarp();
  }
}

// For the warps that have nothing else to do.
__device__ __forceinline__ void clear_tokens(const ManyArgs& a) {
  constexpr int kWarps = kLoadThreads / 32 - 1, kAtOnce = 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kLoadThreads / 32 - 1;
  for (int first = (blockIdx.x * kWarps + warp) * kAtOnce; first < a.num_tokens; first += gridDim.x * kWarps * kAtOnce) {
    const int t = first + lane;
    const bool without = lane < kAtOnce && t < a.num_tokens && a.row_of[(size_t)t * kRowSlots] < 0;
    for (unsigned left = __ballot_sync(0xffffffffu, without); left; left &= left - 1) {
      uint4* to = reinterpret_cast<uint4*>(a.output + (size_t)(first + __ffs(left) - 1) * kHidden);
#pragma unroll 4
      for (int i = lane; i < kHidden / 8; i += 32) __stcs(to + i, make_uint4(0, 0, 0, 0));
    }
  }
}

template <int kTerms>
__global__ void __launch_bounds__(kManyThreads, 1)
    many_gemm2(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs a) {
  using Smem = Smem2<kTerms>;
  Smem& s = begin_many<Smem>(1);
  const int rank = cluster_rank(), warp = threadIdx.x / 32;
  if (warp >= kConsumers / 32) {
    registers_down<56>();
    if (warp == kConsumers / 32) load_many2<kTerms>(s, map, a, rank);
    else if (kLocal < kExperts && a.first_column == 0) clear_tokens(a);
  } else {
    registers_up<224>();
    if (a.first_column > 0) wait_for_previous();  // combine has read the y that this launch writes over
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    Ring<Smem::kStages> ring;
    Item item;
    const Plan plan = read_plan(&a.counters->plan);
    const int all = (plan.longs + plan.shorts) * (a.y_columns / (2 * kTileWeights));
    for (int tile = 0; drawn_tile(s, item, a.tiles2, all, tile, rank); tile++) {
      const int row = item.first_row + item.first, column = item.column * kTileWeights;
      const float* scale = a.w2_scale + (size_t)(item.expert * kK1 + (a.first_column + column) / kBlock) * kK2;
      uint16_t* y = a.y + (size_t)row * a.y_columns + column;
      if (item.wide) gemm2_wide<kTerms>(s, ring, item, scale, y, a.y_columns, warpgroup);
      else gemm2_narrow<kTerms>(s, ring, item, scale, y, a.y_columns, warpgroup);
    }
  }
  wait_for_previous();  // in blocks without a tile too: this kernel must not be over before the one before it
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

cudaError_t launch_many_gemm2(const ManyArgs& a, const CUtensorMap& w2, int terms, cudaStream_t stream) {
  return terms == 1
             ? launch_next(many_gemm2<1>, kCluster * a.clusters, kManyThreads, kCluster, sizeof(Smem2<1>), stream, w2, a)
             : launch_next(many_gemm2<2>, kCluster * a.clusters, kManyThreads, kCluster, sizeof(Smem2<2>), stream, w2, a);
}
