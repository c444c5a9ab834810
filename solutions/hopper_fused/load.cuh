// load: two warps keep the ring of K steps full, walking the same steps as the consumers: all of gemm1's, then all of
// gemm2's. One brings weights and depends on nothing, so weights are on their way while other blocks still gather x or
// write h; the other brings activations and waits for those.
#pragma once
#include "layer.cuh"
#include "sm90.cuh"

__device__ __forceinline__ void arrive_grid(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// One thread waits until every block has arrived.
__device__ __forceinline__ void wait_grid(const unsigned* counter) {
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < gridDim.x);
}

// For one thread.
__device__ __forceinline__ void load_weights(Smem& s, const Maps& maps, bool in_gemm2) {
  const uint64_t policy = policy_evict_first();
  Ring ring;
  Tile tile;
  for (Tiles tiles(s); tiles.take(tile);) {
    // second block of the slot: the next unit, or the next K step of the same one
    const int boxes = tile.width == 2 || tile.split() ? 2 : 1;
    const int next_k = tile.split() ? 1 : 0, next_unit = tile.width - 1;
    for (int i = 0; i < tile.steps(); i++, ring.step++) {
      const int slot = ring.slot(), k = (1 + next_k) * i;
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      mbar_arrive_expect(&s.full[slot], boxes * kUnitBytes);
      for (int b = 0; b < boxes; b++)
        tma_5d(s.ring[slot] + b * kUnitBytes, &maps.w1, &s.full[slot], (k + b * next_k) * kBlock, 0, 0,
               (tile.unit + b * next_unit) * 4, tile.segment.expert, policy);
    }
  }
  if (!in_gemm2) return;
  for (int n = 0; n < s.num_segments; n++) {
    const Segment seg = s.segment[n];
    const int halves = seg.split() ? 2 : 1;
    for (int i = 0; i < seg.steps(); i++, ring.step++) {
      const int slot = ring.slot();
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      mbar_arrive_expect(&s.full[slot], halves * kUnitBytes);
      for (int half = 0; half < halves; half++)
        tma_2d(s.ring[slot] + half * kUnitBytes, &maps.w2, &s.full[slot], (halves * i + half) * kBlock,
               seg.expert * kHidden + blockIdx.x * kColumns, policy);
    }
  }
}

// For one warp: lanes 0 to 7 bring a group's rows each, lanes 8 to 15 a group's scales.
__device__ __forceinline__ void load_activations(Smem& s, const Scratch& scratch, bool in_gemm2) {
  const int lane = threadIdx.x % 32, group = lane % 8;
  const uint64_t policy = policy_evict_last();
  Ring ring;
  Tile tile;
  if (lane == 0) wait_grid(&scratch.counters[kGathered]);
  __syncwarp();
  fence_async_global();
  for (Tiles tiles(s); tiles.take(tile);) {
    const int groups = tile.segment.groups(), first = tile.segment.first_row / kGroup, halves = tile.split() ? 2 : 1;
    for (int i = 0; i < tile.steps(); i++, ring.step++) {
      const int slot = ring.slot();
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      if (lane == 0) mbar_arrive_expect(&s.full[slot], groups * halves * (kTile8 + kGroup * 4));
      __syncwarp();
      if (lane < groups)
        bulk_copy(s.ring[slot] + kSlotW + group * halves * kTile8, scratch.x[first + group][halves * i],
                  halves * kTile8, &s.full[slot], policy);
      else if (lane >= 8 && lane < 8 + groups)
        bulk_copy(s.scales[slot] + group * halves * kGroup, scratch.x_scale[first + group][halves * i],
                  halves * kGroup * 4, &s.full[slot], policy);
    }
  }
  if (!in_gemm2 || s.num_segments == 0) return;
  if (lane == 0) wait_grid(&scratch.counters[kActivated]);
  __syncwarp();
  fence_async_global();
  for (int n = 0; n < s.num_segments; n++) {
    const Segment seg = s.segment[n];
    const int groups = seg.groups(), first = seg.first_row / kGroup, halves = seg.split() ? 2 : 1;
    for (int i = 0; i < seg.steps(); i++, ring.step++) {
      const int slot = ring.slot();
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      if (lane == 0) mbar_arrive_expect(&s.full[slot], groups * halves * (2 * kTile8 + kGroup * 16));
      __syncwarp();
      if (lane < groups)
        bulk_copy(s.ring[slot] + halves * kUnitBytes + group * halves * 2 * kTile8,
                  scratch.h[first + group][halves * i], halves * 2 * kTile8, &s.full[slot], policy);
      else if (lane >= 8 && lane < 8 + groups)
        bulk_copy(s.scales[slot] + group * halves * kGroup * 4, scratch.h_scale[first + group][halves * i],
                  halves * kGroup * 16, &s.full[slot], policy);
    }
  }
}
