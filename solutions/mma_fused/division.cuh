// division: which slices of h and which output columns a CTA has, from the number of CTAs and chunks alone. Every warp
// computes the same lists.
//
// Slices of all chunks form one list, which the CTAs take from the front side by side: h of the first chunks is complete
// long before that of the last, and gemm2 begins with them while other CTAs still compute slices.
#pragma once
#include <cuda_runtime.h>

#include "sizes.cuh"

struct Division {
  int ctas, chunks;
  int alone;         // column tiles that each CTA has for itself
  int shared_tiles;  // the rest: fewer than CTAs
  int splits;        // CTAs that share each of these; CTA `split` takes every splits-th chunk

  __host__ __device__ Division(int ctas_, int chunks_)
      : ctas(ctas_), chunks(chunks_), alone(kColumnTiles / ctas_), shared_tiles(kColumnTiles % ctas_), splits(1) {
    if (shared_tiles > 0) splits = ctas / shared_tiles < kMaxSplits ? ctas / shared_tiles : kMaxSplits;
  }

  // ---- gemm1 ----

  // A CTA's slice number `item`, as chunk * kSlices + slice of the chunk; -1 if it has fewer.
  __host__ __device__ int slice(int cta, int item) const {
    const int slices = chunks * kSlices, rounds = slices / ctas, left = slices % ctas;
    if (item < rounds) return item * ctas + cta;
    const int with_columns = alone > 0 ? ctas : shared_tiles * splits, without = ctas - with_columns;
    // So many slices a CTA without columns finishes before the others reach gemm2's last chunk but one, whose bytes are
    // kColumnTile * kInter for each; a slice is kUnitRows * kHidden.
    const int early = (chunks / splits - 2) * (kColumnTile * kInter) / (kUnitRows * kHidden);
    const int spare = early > 1 ? early : 1;
    const int others = left - without * spare > 0 ? left - without * spare : 0;  // CTAs with columns that take one
    int at = left;
    if (cta >= with_columns) at = others + (item - rounds) * without + cta - with_columns;
    else if (item == rounds && with_columns - 1 - cta < others) at = with_columns - 1 - cta;  // the last: fewer columns
    return at < left ? rounds * ctas + at : -1;
  }

  // ---- gemm2 ----

  // Column tiles of a CTA are in places 0 to places(cta) - 1; the last may be shared.
  __host__ __device__ bool shares(int cta) const { return cta < shared_tiles * splits; }
  __host__ __device__ int places(int cta) const { return alone + shares(cta); }
  __host__ __device__ int most_places() const { return alone + (shared_tiles > 0); }
  __host__ __device__ int split(int cta) const { return cta / shared_tiles; }
  __host__ __device__ int column_tile(int cta, int place) const {
    return place < alone ? place * ctas + cta : alone * ctas + cta % shared_tiles;
  }
  // Whether the CTA multiplies this chunk for the tile in this place.
  __host__ __device__ bool takes(int cta, int place, int chunk) const {
    return place < alone || chunk % splits == split(cta);
  }
};
