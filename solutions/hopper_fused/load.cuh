// load: two warps keep the ring of K steps full, walking the same steps as the consumers: all of gemm1's, then all of
// gemm2's. One brings weights and depends on nothing, so weights are on their way while other blocks still gather x or
// write h; the other brings activations and waits for those, in gemm2 segment by segment.
#pragma once
#include "layer.cuh"
#include "sm90.cuh"

// For one thread, while its block waits for the others' routing: asks L2 for the weights that the block wants first if the
// first experts all have rows. A wrong guess costs bytes in a time when memory has little else to do.
__device__ __forceinline__ void guess_first_weights(const Maps& maps) {
  const uint64_t policy = policy_evict_unchanged();
  const int expert = 2 * blockIdx.x / kUnits, unit = 2 * blockIdx.x % kUnits;
  if (expert >= kLocal) return;
  for (int k = 0; k < kStages; k++)
    for (int b = 0; b < 2; b++) prefetch_5d(&maps.w1, k * kBlock, 0, 0, (unit + b) * 4, expert, policy);
}

// For one thread. Before a direct tile's first weights it asks for the tile's row, and it arrives for the other warp there:
// that one's first steps would come cold from memory, behind the weights.
__device__ __forceinline__ void load_weights(Smem& s, const Maps& maps, const Args& a, bool in_gemm2) {
  const uint64_t policy = s.num_segments <= kEvictFirstExperts ? policy_evict_first() : policy_evict_unchanged();
  Ring<kStages> ring;
  Tile tile;
  int direct_tiles = 0;
  for (Tiles tiles(s); tiles.take(tile);) {
    // second block of the slot: the next unit, or the next K step of the same one
    const int boxes = tile.width == 2 || tile.split() ? 2 : 1;
    const int next_k = tile.split() ? 1 : 0, next_unit = tile.width - 1;
    const bool direct = tile.segment.direct(a.num_tokens);
    for (int i = 0; i < tile.steps(); i++, ring.next()) {
      const int slot = ring.slot, k = (1 + next_k) * i;
      mbar_wait(&s.empty[slot], ring.phase ^ 1);
      if (direct && i == 0) {  // this slot was filled by the tile before, so the one before that, whose row lay here, is done
        mbar_expect(&s.full[slot], kHidden);
        bulk_copy(s.direct_row(tile.turn), a.x + (size_t)s.token[tile.segment.first_row] * kHidden, kHidden, &s.full[slot],
                  policy_evict_last());
      }
      if (direct) mbar_arrive(&s.full[slot]);
      mbar_arrive_expect(&s.full[slot], boxes * kUnitBytes);
      for (int b = 0; b < boxes; b++)
        tma_5d(s.slot(slot) + b * kUnitBytes, &maps.w1, &s.full[slot], (k + b * next_k) * kBlock, 0, 0,
               (tile.unit + b * next_unit) * 4, tile.segment.expert, policy);
    }
    if (direct) {
      if (direct_tiles > 0) mbar_wait(&s.direct_passed, (direct_tiles - 1) % 2);
      mbar_arrive(&s.direct_done);
      direct_tiles++;
    }
  }
  if (!in_gemm2) return;
  for (int n = blockIdx.x / kColumnBlocks; n < s.num_segments; n += kParts) {
    const Segment seg = s.segment[n];
    const int halves = seg.split() ? 2 : 1;
    for (int i = 0; i < seg.steps(); i++, ring.next()) {
      const int slot = ring.slot;
      mbar_wait(&s.empty[slot], ring.phase ^ 1);
      mbar_arrive_expect(&s.full[slot], halves * kUnitBytes);
      for (int half = 0; half < halves; half++)
        tma_2d(s.slot(slot) + half * kUnitBytes, &maps.w2, &s.full[slot], (halves * i + half) * kBlock,
               seg.expert * kHidden + blockIdx.x % kColumnBlocks * kColumns, policy);
    }
  }
}

// For one warp: waits until h of segment n is complete; returns the first segment after it that may not be.
__device__ __forceinline__ int wait_for_h(const unsigned* activated, int n, int num_segments) {
  const int mine = n + threadIdx.x % 32;
  unsigned missing;
  do {
    const bool there = mine >= num_segments || load_acquire(activated + mine) == kUnits;
    missing = __ballot_sync(0xffffffffu, !there);
  } while (missing & 1);
  __syncwarp();
  fence_async_global();
  return missing ? n + __ffs(missing) - 1 : n + 32;
}

// For one warp, whose first lane copies. Two copies a step, rows and scales: a copy costs its issuer about 50 cycles,
// however small it is. Of a direct segment load_weights brings the row, and its scales are in shared memory.
__device__ __forceinline__ void load_activations(Smem& s, const Args& a, bool in_gemm2) {
  const Scratch& scratch = *a.scratch;
  const uint64_t policy = policy_evict_last();
  const bool copies = threadIdx.x % 32 == 0;
  bool gathered = false;
  int direct_tiles = 0;
  Ring<kStages> ring;
  Tile tile;
  for (Tiles tiles(s); copies && tiles.take(tile);) {
    const Segment& seg = tile.segment;
    const int halves = tile.split() ? 2 : 1, bytes = seg.groups() * halves * kTile8;
    if (seg.direct(a.num_tokens)) {
      // passed over when load_weights is through with it: the ring's barriers tell a round from its neighbours only
      mbar_wait(&s.direct_done, direct_tiles++ % 2);
      mbar_arrive(&s.direct_passed);
      ring.pass(tile.steps());
      continue;
    }
    if (!gathered) {
      wait_gpu(&scratch.counters[kGathered], gridDim.x);
      fence_async_global();
      gathered = true;
    }
    for (int i = 0; i < tile.steps(); i++, ring.next()) {
      const int slot = ring.slot, scale_bytes = seg.groups() * halves * kGroup * 4;
      mbar_wait(&s.empty[slot], ring.phase ^ 1);
      mbar_arrive_expect(&s.full[slot], bytes + scale_bytes);
      bulk_copy(s.slot(slot) + kSlotW, scratch.x + seg.x_at(halves * i), bytes, &s.full[slot], policy);
      bulk_copy(s.scales[slot], scratch.x_scale + seg.x_scale_at(halves * i), scale_bytes, &s.full[slot], policy);
    }
  }
  if (!in_gemm2) return;
  __syncwarp();
  for (int n = blockIdx.x / kColumnBlocks, ready = 0; n < s.num_segments; n += kParts) {
    if (n >= ready) ready = wait_for_h(scratch.activated, n, s.num_segments);
    if (!copies) continue;
    const Segment seg = s.segment[n];
    const int halves = seg.split() ? 2 : 1, bytes = seg.groups() * halves * 2 * kTile8;
    for (int i = 0; i < seg.steps(); i++, ring.next()) {
      const int slot = ring.slot, scale_bytes = seg.groups() * halves * kGroup * 16;
      mbar_wait(&s.empty[slot], ring.phase ^ 1);
      mbar_arrive_expect(&s.full[slot], bytes + scale_bytes);
      bulk_copy(s.slot(slot) + halves * kUnitBytes, scratch.h + seg.h_at(halves * i), bytes, &s.full[slot], policy);
      bulk_copy(s.scales[slot], scratch.h_scale + seg.h_scale_at(halves * i), scale_bytes, &s.full[slot], policy);
    }
  }
}
