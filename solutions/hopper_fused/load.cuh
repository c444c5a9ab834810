// load: two warps keep the ring of K steps full. One issues the bulk copies (weights, tokens, h), the other the
// scales. Both walk the same steps as the consumers: all of gemm1's, then all of gemm2's.
#pragma once
#include "layer.cuh"
#include "sm90.cuh"

// Waits until all blocks have written their part of h.
__device__ __forceinline__ void wait_for_h(const Scratch* scratch) {
  if (threadIdx.x % 32 == 0) {
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(&scratch->counters[1]) : "memory");
    } while (seen < gridDim.x);
  }
  __syncwarp();
}

__device__ __forceinline__ void load_operands(
    Smem& s, const Maps& maps, const Args& a, const uint16_t* token, bool in_gemm2) {
  const int lane = threadIdx.x % 32;
  const uint64_t once = policy_evict_first(), often = policy_evict_last();
  Ring ring;
  Tile tile;
  for (Tiles tiles(s); tiles.take(tile);) {
    const int token0 = lane < tile.rows ? token[tile.first_row + lane] : 0;
    const int token1 = lane + 32 < tile.rows ? token[tile.first_row + lane + 32] : 0;
    for (int k = 0; k < kK1; k++, ring.step++) {
      const int slot = ring.slot();
      uint8_t* w = s.ring[slot];
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      if (lane == 0) {
        mbar_arrive_expect(&s.full[slot], tile.width * kUnitBytes + tile.rows * kBlock);
        for (int u = 0; u < tile.width; u++)
          tma_5d(w + u * kUnitBytes, &maps.w1, &s.full[slot], k * kBlock, 0, 0, (tile.unit + u) * 4, tile.expert, once);
      }
      __syncwarp();
      uint8_t* x = w + kSlotW;
      if (lane < tile.rows) tma_2d(x + lane * kBlock, &maps.x, &s.full[slot], k * kBlock, token0, often);
      if (lane + 32 < tile.rows)
        tma_2d(x + (lane + 32) * kBlock, &maps.x, &s.full[slot], k * kBlock, token1, often);
    }
  }
  if (!in_gemm2) return;

  // gemm2's first weights do not depend on h: they are on their way while other blocks still write it
  const int steps = s.num_segments * kK2, ahead = min(steps, kStages), base = ring.step;
  for (int i = 0; i < steps + ahead; i++) {
    if (i == ahead) {
      wait_for_h(a.scratch);
      fence_async_proxy();
    }
    const bool early = i < ahead;
    const int now = early ? i : i - ahead;
    ring.step = base + now;
    const int slot = ring.slot();
    const Segment seg = s.segment[now / kK2];
    const int k = now % kK2, groups = (seg.rows + 7) / 8;
    uint8_t* w = s.ring[slot];
    if (early || now >= ahead) {
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      if (lane == 0) {
        mbar_arrive_expect(&s.full[slot], kUnitBytes + groups * 2 * 8 * kBlock);
        tma_2d(w, &maps.w2, &s.full[slot], k * kBlock, seg.expert * kHidden + blockIdx.x * kColumns, once);
      }
      __syncwarp();
    }
    if (!early && lane < groups)
      tma_3d(w + kUnitBytes + lane * 2 * 8 * kBlock, &maps.h, &s.full[slot], k * kBlock,
             seg.first_row + 8 * lane, 0, often);
  }
}

__device__ __forceinline__ void load_scales(Smem& s, const Args& a, const uint16_t* token, bool in_gemm2) {
  const int lane = threadIdx.x % 32;
  Ring ring;
  Tile tile;
  for (Tiles tiles(s); tiles.take(tile);) {
    const float* x_scale0 = a.x_scale + (lane < tile.rows ? token[tile.first_row + lane] : 0);
    const float* x_scale1 = a.x_scale + (lane + 32 < tile.rows ? token[tile.first_row + lane + 32] : 0);
    // lane 0 brings the scale of up's block, lane 1 that of gate's, half the blocks further on
    const int block = tile.unit * kUnit / kBlock + (lane == 1 ? kInter / kBlock : 0);
    const float* w_scale = a.w1_scale + (tile.expert * 2 * (kInter / kBlock) + block) * kK1;
    for (int k = 0; k < kK1; k++, ring.step++) {
      const int slot = ring.slot();
      mbar_wait(&s.empty[slot], ring.phase() ^ 1);
      float* to = s.scales[slot];
      if (lane < tile.rows) copy4(to + lane, x_scale0 + (size_t)k * a.num_tokens);
      if (lane + 32 < tile.rows) copy4(to + lane + 32, x_scale1 + (size_t)k * a.num_tokens);
      if (lane < 2) copy4(to + 4 * kChunk + lane, w_scale + k);
      mbar_arrive_after_copies(&s.full[slot]);
    }
  }
  if (!in_gemm2 || s.num_segments == 0) return;
  wait_for_h(a.scratch);
  for (int i = 0; i < s.num_segments * kK2; i++, ring.step++) {
    const int slot = ring.slot(), k = i % kK2;
    const Segment seg = s.segment[i / kK2];
    mbar_wait(&s.empty[slot], ring.phase() ^ 1);
    float* to = s.scales[slot];
    for (int r = lane; r < seg.rows; r += 32) copy16(to + 4 * r, &a.scratch->h_scale[seg.first_row + r][4 * k]);
    const int block = blockIdx.x * kColumns / kBlock;
    if (lane == 0) copy4(to + 4 * kChunk, a.w2_scale + (seg.expert * (kHidden / kBlock) + block) * kK2 + k);
    mbar_arrive_after_copies(&s.full[slot]);
  }
}
