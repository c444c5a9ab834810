// slice_scheduler: which slices of h a CTA computes in gemm1. Static: every warp of the CTA computes the same list.
//
// The slices of all chunks form one queue, which the CTAs take from the front side by side. So h of the first chunks is
// complete long before that of the last, and gemm2 begins with them while other CTAs still compute slices.
// A tile is two neighbouring slices of one chunk, or one slice.
//
//   full rounds   every CTA takes the same number of slices, two at a time
//   the rest      less than one slice per CTA. The CTAs without a column tile in gemm2 take as many as they can finish
//                 before the others reach gemm2's last chunk; what is still left goes to the others, one each
#pragma once
#include "fused_layer.cuh"

static_assert(kSlices % 2 == 0, "a tile's two slices belong to one chunk");

struct SliceTile {
  Chunk chunk;
  int chunk_index;
  int slice, width;  // the first slice; 1 or 2
  int nth;   // among this CTA's tiles
  // K steps and whether the warpgroups split them: each then has half of K of the one slice.
  __device__ bool split_k() const { return width == 1 && chunk.rows <= kSplitKRows1; }
  __device__ int steps() const { return split_k() ? kNumKBlocks1 / 2 : kNumKBlocks1; }
};

struct SliceScheduler {
  const FusedSmem& s;
  int taken = 0;
  __device__ explicit SliceScheduler(const FusedSmem& smem) : s(smem) {}
  // This CTA's next tile; false when there is none.
  __device__ bool take(SliceTile& t) {
    const int cta = blockIdx.x, ctas = gridDim.x, without_columns = ctas - kGemm2Ctas;
    const int slices = s.num_chunks * kSlices, full = slices / ctas, pairs = full / 2;
    int at = 2 * (taken * ctas + cta);
    t.width = 2;
    if (taken >= pairs) {
      const int more = taken - pairs - full % 2;
      // in gemm2 a chunk takes a column tile's weights, kColumnTile * kIntermediate; a slice takes 2 * kSliceColumns * kHidden
      const int spare =
          max(1, (s.num_chunks / kChunkSplits - 2) * (kColumnTile * kIntermediate) / (2 * kSliceColumns * kHidden));
      const int one_more = max(0, slices % ctas - without_columns * spare);  // CTAs with columns that take one more
      t.width = 1;
      if (more < 0) at = 2 * pairs * ctas + cta;
      else if (cta >= kGemm2Ctas) at = full * ctas + one_more + more * without_columns + cta - kGemm2Ctas;
      else at = more == 0 && cta < one_more ? full * ctas + cta : slices;
      if (at >= slices) return false;
    }
    t.nth = taken++;
    t.chunk_index = at / kSlices;
    t.slice = at % kSlices;
    t.chunk = s.chunk[t.chunk_index];
    return true;
  }
};
