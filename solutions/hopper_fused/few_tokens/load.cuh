// load: the two producer warps that fill the pipeline. Both walk the same K steps as the consumers: all of gemm1's,
// then all of gemm2's. One loads weights, which depend on nothing, so they are in flight while other CTAs still gather
// x or store h. The other loads activations and waits for those, in gemm2 chunk by chunk.
#pragma once
#include "barrier.cuh"
#include "counter.cuh"
#include "l2.cuh"
#include "pipeline.cuh"
#include "slice_scheduler.cuh"
#include "tma.cuh"

constexpr int kHalvesGroups = kSliceColumns / kAtomRows;  // groups of 8 rows of each half of W13 in a slice

// For one thread, while its CTA waits for the other CTAs' routing: prefetches to L2 the weights that the CTA needs
// first if the first experts all have rows. A wrong guess costs bytes at a time when memory has little else to do.
__device__ __forceinline__ void prefetch_first_weights(const TensorMaps& maps) {
  const uint64_t policy = l2_evict_unchanged();
  const int expert = 2 * blockIdx.x / kSlices, slice = 2 * blockIdx.x % kSlices;
  if (expert >= kNumLocalExperts) return;
  for (int k = 0; k < kFusedStages; k++)
    for (int b = 0; b < 2; b++)
      tma_prefetch_5d(&maps.w1, k * kBlockK, 0, 0, (slice + b) * kHalvesGroups, expert, policy);
}

// For one thread. If the tile bypasses the gather, it also loads the tile's row, before the first weights: requested by
// the other warp, the row would come from memory behind them. It then arrives at `full` for that warp as well.
__device__ __forceinline__ void load_weights(FusedSmem& s, const TensorMaps& maps, const FusedArgs& args,
                                             bool in_gemm2) {
  const uint64_t policy = s.num_chunks <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  PipelineState<kFusedStages> pipe;
  SliceTile tile;
  int bypass_tiles = 0;
  for (SliceScheduler tiles(s); tiles.take(tile);) {
    // the second half of the stage: the next slice, or the next K step of the same slice
    const int boxes = tile.width == 2 || tile.split_k() ? 2 : 1;
    const int next_k = tile.split_k() ? 1 : 0, next_slice = tile.width - 1;
    const bool bypass = tile.chunk.bypasses_gather(args.num_tokens);
    for (int i = 0; i < tile.steps(); i++, pipe.advance()) {
      const int stage = pipe.stage, k = (1 + next_k) * i;
      mbar_wait(&s.empty[stage], pipe.phase ^ 1);
      if (bypass && i == 0) {
        // The previous tile filled this stage and it is free again, so the tile before that one, whose row lay here, is
        // done.
        mbar_expect_tx(&s.full[stage], kHidden);
        bulk_load(s.bypass_row(tile.nth), args.x + (size_t)s.token[tile.chunk.first_row] * kHidden, kHidden,
                  &s.full[stage], l2_evict_last());
      }
      if (bypass) mbar_arrive(&s.full[stage]);
      mbar_arrive_expect_tx(&s.full[stage], boxes * kSliceBytes);
      for (int b = 0; b < boxes; b++)
        tma_load_5d(s.stage(stage) + b * kSliceBytes, &maps.w1, &s.full[stage], (k + b * next_k) * kBlockK, 0, 0,
                    (tile.slice + b * next_slice) * kHalvesGroups, tile.chunk.expert, policy);
    }
    if (bypass) {
      if (bypass_tiles > 0) mbar_wait(&s.bypass_skipped, (bypass_tiles - 1) % 2);
      mbar_arrive(&s.bypass_loaded);
      bypass_tiles++;
    }
  }
  if (!in_gemm2) return;
  for (int n = blockIdx.x / kColumnTiles; n < s.num_chunks; n += kChunkSplits) {
    const Chunk chunk = s.chunk[n];
    const int halves = chunk.split_k() ? 2 : 1;
    for (int i = 0; i < chunk.steps(); i++, pipe.advance()) {
      const int stage = pipe.stage;
      mbar_wait(&s.empty[stage], pipe.phase ^ 1);
      mbar_arrive_expect_tx(&s.full[stage], halves * kSliceBytes);
      for (int half = 0; half < halves; half++)
        tma_load_2d(s.stage(stage) + half * kSliceBytes, &maps.w2, &s.full[stage], (halves * i + half) * kBlockK,
                    chunk.expert * kHidden + blockIdx.x % kColumnTiles * kColumnTile, policy);
    }
  }
}

// For a whole warp: waits until h of chunk n is complete. Returns the first chunk after it that may not be.
__device__ __forceinline__ int wait_for_h(const unsigned* slices_stored, int n, int num_chunks) {
  const int mine = n + threadIdx.x % kWarp;
  unsigned missing;
  do {
    const bool there = mine >= num_chunks || load_acquire(slices_stored + mine) == kSlices;
    missing = __ballot_sync(kFullWarp, !there);
  } while (missing & 1);
  __syncwarp();
  fence_proxy_async_global();  // h was written by generic stores and is read by bulk copies
  return missing ? n + __ffs(missing) - 1 : n + kWarp;
}

// For a whole warp, whose first lane copies. Two bulk copies a step, rows and scales: issuing one costs about 50
// cycles, however small it is. For a chunk that bypasses the gather load_weights loads the row; its scales are in
// shared memory.
__device__ __forceinline__ void load_activations(FusedSmem& s, const FusedArgs& args, bool in_gemm2) {
  const FusedScratch& scratch = *args.scratch;
  const uint64_t policy = l2_evict_last();
  const bool copies = threadIdx.x % kWarp == 0;
  bool gathered = false;
  int bypass_tiles = 0;
  PipelineState<kFusedStages> pipe;
  SliceTile tile;
  for (SliceScheduler tiles(s); copies && tiles.take(tile);) {
    const Chunk& chunk = tile.chunk;
    const int halves = tile.split_k() ? 2 : 1, bytes = chunk.atoms() * halves * kAtomBytes;
    if (chunk.bypasses_gather(args.num_tokens)) {
      // Skips the tile's steps only once load_weights has issued them: the phase of `empty` is one bit, so this warp
      // must not fall behind or run ahead by more than one pass over the stages.
      mbar_wait(&s.bypass_loaded, bypass_tiles++ % 2);
      mbar_arrive(&s.bypass_skipped);
      pipe.advance(tile.steps());
      continue;
    }
    if (!gathered) {
      counter_wait(&scratch.counters[kGathered], gridDim.x);
      fence_proxy_async_global();
      gathered = true;
    }
    for (int i = 0; i < tile.steps(); i++, pipe.advance()) {
      const int stage = pipe.stage, scale_bytes = chunk.atoms() * halves * kAtomRows * (int)sizeof(float);
      mbar_wait(&s.empty[stage], pipe.phase ^ 1);
      mbar_arrive_expect_tx(&s.full[stage], bytes + scale_bytes);
      bulk_load(s.stage(stage) + kStageWeightBytes, scratch.x + chunk.x_at(halves * i), bytes, &s.full[stage], policy);
      bulk_load(s.scales[stage], scratch.x_scale + chunk.x_scale_at(halves * i), scale_bytes, &s.full[stage], policy);
    }
  }
  if (!in_gemm2) return;
  __syncwarp();
  for (int n = blockIdx.x / kColumnTiles, ready = 0; n < s.num_chunks; n += kChunkSplits) {
    if (n >= ready) ready = wait_for_h(scratch.slices_stored, n, s.num_chunks);
    if (!copies) continue;
    const Chunk chunk = s.chunk[n];
    const int halves = chunk.split_k() ? 2 : 1, bytes = chunk.atoms() * halves * 2 * kAtomBytes;
    for (int i = 0; i < chunk.steps(); i++, pipe.advance()) {
      const int stage = pipe.stage;
      const int scale_bytes = chunk.atoms() * halves * kAtomRows * kSlicesPerStep * (int)sizeof(float);
      mbar_wait(&s.empty[stage], pipe.phase ^ 1);
      mbar_arrive_expect_tx(&s.full[stage], bytes + scale_bytes);
      bulk_load(s.stage(stage) + halves * kSliceBytes, scratch.h + chunk.h_at(halves * i), bytes, &s.full[stage],
                policy);
      bulk_load(s.scales[stage], scratch.h_scale + chunk.h_scale_at(halves * i), scale_bytes, &s.full[stage], policy);
    }
  }
}
