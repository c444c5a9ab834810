// division: which slices of h and which output columns a CTA has, from the number of CTAs and chunks alone.
//
// Slices of all chunks form one list, which the CTAs take from the front side by side: h of the first chunks is
// complete long before that of the last, and gemm2 begins with them while other CTAs still compute slices.
#pragma once
#include <cuda_runtime.h>

#include "sizes.cuh"

// Column tiles that each of so many CTAs has alone; the rest, fewer than CTAs; CTAs that share one of the rest.
struct ColumnTiles {
  int alone, shared, splits;
  __host__ __device__ explicit ColumnTiles(int ctas)
      : alone(kColumnTiles / ctas), shared(kColumnTiles % ctas), splits(1) {
    if (shared > 0) splits = ctas / shared < kMaxSplits ? ctas / shared : kMaxSplits;
  }
  // Places for column tiles that a CTA has at most: those it has alone, and then a shared one.
  __host__ __device__ int most_places() const { return alone + (shared > 0); }
};

// Of one CTA.
struct Division {
  int ctas, cta, chunks;
  // gemm1
  int rounds;         // in which each CTA takes a slice
  int left;           // slices after these
  int first_left;     // the CTA's first among them; -1 without one
  int left_distance;  // to its next
  // gemm2
  int alone;        // column tiles that it has alone
  int shared_tile;  // the column tile that it shares; -1 without one
  int sharing_cta;  // the first of the CTAs that share it; others follow in steps of sharing_distance
  int sharing_distance;
  int split, splits;  // this CTA takes chunks n with n % splits == split

  __host__ __device__ Division(int ctas_, int cta_, int chunks_) : ctas(ctas_), cta(cta_), chunks(chunks_) {
    const ColumnTiles tiles(ctas);
    alone = tiles.alone, splits = tiles.splits, sharing_distance = tiles.shared;
    const bool shares = cta < tiles.shared * splits;
    split = shares ? cta / tiles.shared : 0;
    sharing_cta = shares ? cta % tiles.shared : 0;
    shared_tile = shares ? alone * ctas + sharing_cta : -1;

    const int slices = chunks * kSlices;
    // The CTAs without columns take more slices than the others, as many as they finish before the others reach gemm2's
    // last chunk but one, whose bytes are kColumnTile * kInter for each; a slice is kUnitRows * kHidden.
    const int with_columns = alone > 0 ? ctas : tiles.shared * splits, without = ctas - with_columns;
    const int early = (chunks / splits - 2) * (kColumnTile * kInter) / (kUnitRows * kHidden);
    const int taken = without * (early > 1 ? early : 1);
    const int shared = slices > taken ? slices - taken : 0;  // by all; of full rounds as many as there are
    rounds = shared / ctas < slices / ctas && shared % ctas ? shared / ctas + 1 : shared / ctas;
    left = slices - rounds * ctas;
    // What then still is left goes to the others, one each, to the last of them first: these may have fewer columns.
    const int others = left > taken ? left - taken : 0;
    if (cta >= with_columns) first_left = others + cta - with_columns, left_distance = without;
    else first_left = with_columns - 1 - cta < others ? with_columns - 1 - cta : -1, left_distance = left;
  }

  // The CTA's slice number `item`, as chunk * kSlices + slice of the chunk; -1 if it has fewer.
  __host__ __device__ int slice(int item) const {
    if (item < rounds) return item * ctas + cta;
    const int at = first_left + (item - rounds) * left_distance;
    return first_left >= 0 && at < left ? rounds * ctas + at : -1;
  }

  // Column tiles are in places 0 to places() - 1; the last may be shared.
  __host__ __device__ int places() const { return alone + (shared_tile >= 0); }
  __host__ __device__ int column_tile(int place) const { return place < alone ? place * ctas + cta : shared_tile; }
  // gemm2's order: chunk by chunk, and each for the column tiles of all places, but a shared one's for some chunks only.
  // From a place, first chunk 0 and place -1, moves to the next; false where there is none.
  __host__ __device__ bool next_place(int& chunk, int& place) const {
    if (places() == 0) return false;
    do {
      if (++place >= places()) place = 0, chunk++;
    } while (chunk < chunks && place >= alone && chunk % splits != split);
    return chunk < chunks;
  }
};
