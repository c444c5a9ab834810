// many_gemm1: G = W13 . x^T for all rows, h = silu(gate) * up, h in one or two FP8 terms.
//
//   warps 8..11   load: weights by TMA, half a tile each block to both where they are shared; rows from where their tokens'
//                 x lies, by 16-byte copies, which swizzle them on the way; the weights' scales
//   warps 0..7    two warpgroups: products, then SwiGLU and FP8 with one scale for a row and the tile's 128 columns of h
//
// A tile's 256 weight rows are 8 of up and 8 of gate in turn (the TMA box does that): SwiGLU stays in registers.
// It cannot deadlock: the two blocks of a cluster run together, and no block waits for another cluster.
#include "many_gemm1_narrow.cuh"
#include "many_gemm1_wide.cuh"

// For the warps 8 to 11: 16 bytes of each 16th row are a thread's, which knows the rows' tokens; the first thread asks for
// weights and scales as well.
__device__ __forceinline__ void load_many1(Smem1& s, const CUtensorMap& map, const ManyArgs& a, const Plan& plan, int rank) {
  constexpr int kRowsAtOnce = kLoadThreads / 8, kTimes = kTileRows / kRowsAtOnce;
  const uint64_t for_weights = plan.experts <= kEvictFirstExperts ? policy_evict_first() : policy_evict_unchanged();
  const uint64_t last = policy_evict_last();
  const int thread = threadIdx.x % kLoadThreads, row = thread / 8, piece = thread % 8;
  const int place = row / 8 * kTile8 + swizzled(row % 8, piece * 16);
  if (thread == 0) fence_async_global();  // it copies the scales, which were stored by ordinary stores
  Ring<Smem1::kStages> ring;
  Item item;
  for (Walk walk(a.tiles1, plan, a.clusters); walk.take(item, rank);) {
    const int first_row = item.first_row, rows = item.rows;
    const float* scale = a.gathered_scale + (size_t)first_row * kK1 + item.first;
    const float* w_scale = a.w1_scale + (size_t)((item.expert * 2 + thread) * (kInter / kBlock) + item.column) * kK1;
    unsigned from[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; i++)
      from[i] = i * kRowsAtOnce < item.n
                    ? __ldg(a.row_token + first_row + item.first + i * kRowsAtOnce + row) * kHidden + piece * 16u
                    : 0u;
    for (int k = 0; k < kK1; k++, ring.next()) {
      const int slot = ring.slot;
      uint64_t* full = &s.full[slot];
      mbar_wait(&s.empty[slot], ring.phase ^ 1);
      if (thread == 0) {
        mbar_arrive_expect(full, kManySlotW + item.n * 4);
        if (item.shared) {
          tma_5d_multicast(s.w[slot] + rank * kManySlotW / 2, &map, full, k * kBlock, 0, 0, item.column * 16 + rank * 8,
                           item.expert, 3, for_weights);
        } else {
          for (int half = 0; half < 2; half++)
            tma_5d(s.w[slot] + half * kManySlotW / 2, &map, full, k * kBlock, 0, 0, item.column * 16 + half * 8,
                   item.expert, for_weights);
        }
        bulk_copy(s.scales[slot], scale + (size_t)k * rows, item.n * 4, full, last);
      }
      __syncwarp();
      if (thread < 2) copy_16(s.w_scales[slot] + 4 * thread, w_scale + k / 4 * 4);  // up's and gate's
      const uint8_t* x = a.x + k * kBlock;
      uint8_t* to = s.rows[slot][0] + place;
#pragma unroll
      for (int i = 0; i < kTimes; i++)
        if (i * kRowsAtOnce < item.n) copy_16(to + i * kRowsAtOnce * kBlock, x + from[i]);
      arrive_with_copies(full);
    }
  }
}

template <int kTerms>
__global__ void __launch_bounds__(kManyThreads, 1)
    many_gemm1(const __grid_constant__ CUtensorMap map, const __grid_constant__ ManyArgs a) {
  wait_for_previous();
  let_next_begin();
  Smem1& s = begin_many<Smem1>(1 + kLoadThreads);
  const Plan plan = read_plan(&a.counters->plan);
  const int rank = cluster_rank(), warp = threadIdx.x / 32;
  if (blockIdx.x == 0 && threadIdx.x == 0) a.counters->routed = 0;
  if (warp >= kConsumers / 32) {
    registers_down<56>();
    load_many1(s, map, a, plan, rank);
  } else {
    registers_up<224>();
    const int warpgroup = __shfl_sync(0xffffffffu, warp / 4, 0);
    Ring<Smem1::kStages> ring;
    Item item;
    Walk walk(a.tiles1, plan, a.clusters);
    if (!walk.more()) tell_of_h(&a.counters->but_last);  // without a tile
    while (walk.take(item, rank)) {
      if (!walk.more()) tell_of_h(&a.counters->but_last);
      if (item.wide) gemm1_wide<kTerms>(s, a, ring, item, warpgroup);
      else gemm1_narrow<kTerms>(s, a, ring, item, warpgroup);
    }
    tell_of_h(&a.counters->stored);
  }
  __syncwarp();
  cluster_sync();  // a block that is gone cannot be told that a slot is free
}

cudaError_t prepare_many_gemm1() {
  for (auto kernel : {many_gemm1<1>, many_gemm1<2>})
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem1)))
      return error;
  return cudaSuccess;
}

cudaError_t launch_many_gemm1(const ManyArgs& a, const CUtensorMap& w1, int terms, cudaStream_t stream) {
  return launch_next(terms == 1 ? many_gemm1<1> : many_gemm1<2>, kCluster * a.clusters, kManyThreads, kCluster, sizeof(Smem1), stream, w1,
                     a);
}
