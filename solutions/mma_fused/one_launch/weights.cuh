// weights: each warp's stream of units through its own stages. The stream walks what the warp multiplies, all of gemm1
// and then all of gemm2, kStages units ahead: weights depend on nothing, so they are in flight while the warp waits for
// h or sums up. A unit lies in its stage as TMA's 128-byte swizzle has it: 16-byte piece c of row r is piece c ^ r % 8.
#pragma once
#include "barrier.cuh"
#include "cp_async.cuh"
#include "fused_layer.cuh"
#include "l2.cuh"
#include "tma.cuh"

constexpr int kEvictFirstChunks = 12;

// A place in the warp's list of units.
struct UnitCursor {
  bool gemm2 = false, done = false;
  int item = -1;             // gemm1: number of the CTA's piece
  int chunk = 0, place = -1;  // gemm2
  int at = 0;                // gemm1: slice in the list; gemm2: column tile
  int k = 0, end = 0;        // K step, and the end of those here; at first before the warp's first unit

  __device__ void advance(const Division& division, int warp) {
    k += kWarps;
    while (!done && k >= end) {
      if (!gemm2) {
        const Piece piece = division.piece(++item);
        at = piece.at, k = piece.first + warp, end = piece.end;
        gemm2 = at < 0;
      }
      if (gemm2) {
        k = warp, end = kNumKBlocks2;
        done = !division.next_place(chunk, place);
        if (!done) at = division.column_tile(place);
      }
    }
  }
};

struct WeightStream {
  Smem& s;
  const TensorMaps& maps;
  const FusedArgs& args;
  const int warp, lane;
#if MMA_FUSED_TMA
  // Measured: W13 is read up to 5% faster in the one way or the other.
  const uint64_t w1_policy = s.num_chunks <= kEvictFirstChunks ? l2_evict_first() : l2_evict_unchanged();
#endif
  UnitCursor next;  // the unit loaded last
  int stage = 0, phase = 0;  // of the unit that the warp multiplies next

  __device__ WeightStream(Smem& smem, const TensorMaps& maps_, const FusedArgs& args_)
      : s(smem),
        maps(maps_),
        args(args_),
        warp(__shfl_sync(kFullWarp, threadIdx.x / kWarp, 0)),  // uniform, and the compiler knows it
        lane(threadIdx.x % kWarp) {
#pragma unroll 1
    for (int i = 0; i < kStages; i++) load(i);
  }

  // Waits for the unit; its stage.
  __device__ const uint8_t* wait() const {
#if MMA_FUSED_TMA
    mbar_wait(&s.full[warp][stage], phase);
#else
    cp_async_wait<kStages - 1>();
    __syncwarp();  // the other lanes' copies
#endif
    return s.stages[warp][stage];
  }

  // The unit is read: the next one may overwrite it.
  __device__ void advance() {
    __syncwarp();
    load(stage);
    if (++stage == kStages) stage = 0, phase ^= 1;
  }

 private:
  __device__ void load(int into) {
    if (!next.done) next.advance(s.division, warp);
    uint8_t* to = s.stages[warp][into];
    if (!next.done) {
      const Chunk& chunk = s.chunk[next.gemm2 ? next.chunk : next.at / kSlices];
      const int slice = next.at % kSlices;
#if MMA_FUSED_TMA
      uint64_t* full = &s.full[warp][into];
      if (lane == 0) {
        mbar_arrive_expect_tx(full, kUnitBytes);
        if (next.gemm2)
          tma_load_2d(to, &maps.w2, full, next.k * kBlockK, chunk.expert * kHidden + next.at * kColumnTile,
                      l2_evict_first());  // else it pushes h and sums out of L2
        else
          tma_load_5d(to, &maps.w1, full, next.k * kBlockK, 0, 0, slice * (kSliceColumns / 8), chunk.expert, w1_policy);
      }
#else
      // A lane copies piece lane % 8 of rows lane / 8, 4 + lane / 8, ...: eight lanes one row of 128 bytes.
      const int piece = lane % 8, first = lane / 8;
      const size_t pitch = next.gemm2 ? kIntermediate : kHidden;
      const size_t first_row = next.gemm2 ? (size_t)chunk.expert * kHidden + next.at * kColumnTile
                                          : (size_t)chunk.expert * 2 * kIntermediate + slice * kSliceColumns;
      const uint8_t* from = (next.gemm2 ? args.w2 : args.w1) + first_row * pitch;
      from += next.k * kBlockK + piece * 16;
#pragma unroll
      for (int i = 0; i < kUnitRows / 4; i++) {
        const int row = 4 * i + first;
        // of a slice's rows, eight are of the first half and the next eight of the second
        const size_t source = next.gemm2 ? row : row / 16 * 8 + row % 8 + row / 8 % 2 * kIntermediate;
        cp_async_16(to + row * kBlockK + (piece ^ row % 8) * 16, from + source * pitch);
      }
#endif
    }
#if !MMA_FUSED_TMA
    cp_async_commit();  // also without a unit: wait() counts groups
#endif
  }
};
