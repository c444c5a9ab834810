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

    // Time in steps of a warp. CTAs that share a tile have the most columns; the others take more slices, the last of
    // the list. So gemm2 waits for the others' last round, and then still has the chunks in it to do.
    const int slices = chunks * kSlices, sharers = tiles.shared * splits, others = ctas - sharers;
    const auto gemm2 = [&](int n) { return (alone * n + (sharers > 0 ? (n + splits - 1) / splits : 0)) * kWarpSteps2; };
    const int last_round = (others + kSlices - 1) / kSlices, last = gemm2(last_round < chunks ? last_round : chunks);
    const int of_sharers = gemm2(chunks), of_alone = alone * chunks * kWarpSteps2;
    const int of_others = of_alone > last ? of_alone : last;
    // The least time in which all slices fit, from where it would be if all CTAs had the same.
    int time = (slices * kWarpSteps1 + sharers * of_sharers + others * of_others) / ctas;
    const auto most = [&](int columns) { return time > columns ? (time - columns) / kWarpSteps1 : 0; };  // slices
    while (sharers * most(of_sharers) + others * most(of_others) < slices) time++;

    // In that time the others take all that they can, after the rounds. What is left, less than one each, goes to the
    // sharers, to the last of them first: these may have fewer columns.
    rounds = most(of_sharers) > 0 ? most(of_sharers) - 1 : 0;
    left = slices - rounds * ctas;
    const int of_the_others = others * (most(of_others) - rounds);
    const int ones = left > of_the_others ? left - of_the_others : 0;
    if (cta >= sharers) first_left = ones + cta - sharers, left_distance = others;
    else first_left = sharers - 1 - cta < ones ? sharers - 1 - cta : -1, left_distance = left;
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
