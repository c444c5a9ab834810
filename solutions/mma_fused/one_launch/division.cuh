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
  // Places for column tiles: those that a CTA has alone, and then perhaps a shared one.
  __host__ __device__ int most_places() const { return alone + (shared > 0); }
};

// What a CTA computes in gemm1 at a time: a slice, or one half of it by K, where another CTA has the other half.
struct Piece {
  int at;          // of the slice in the list, chunk * kSlices + slice of the chunk; -1: none
  int first, end;  // K steps

  __host__ __device__ bool is_first_half() const { return end < kNumKBlocks1; }
  __host__ __device__ bool is_second_half() const { return first > 0; }
};

// Of one CTA: column tiles from the number of CTAs alone, and then slices by divide(), which needs that of chunks.
struct Division {
  int ctas, cta;
  int chunks;
  // gemm1
  int rounds;    // in which each CTA takes a slice
  int whole;     // slices that this CTA has alone, those of the rounds included
  int more;      // the first after the rounds
  int distance;  // to its next
  // Its last piece may be half of a slice: number of that among the slices that are cut, or -1; 0 for the first K steps,
  // 1 for the rest; the slice.
  int cut, half, cut_slice;
  // gemm2
  int alone;        // column tiles that it has alone
  int shared_tile;  // the column tile that it shares; -1 without one
  int sharing_cta;  // the first of the CTAs that share it; others follow in steps of sharing_distance
  int sharing_distance;
  int split, splits;  // this CTA takes chunks n with n % splits == split

  __host__ __device__ Division(int ctas_, int cta_) : ctas(ctas_), cta(cta_) {
    const ColumnTiles tiles(ctas);
    alone = tiles.alone, splits = tiles.splits, sharing_distance = tiles.shared;
    const bool shares = cta < tiles.shared * splits;
    split = shares ? cta / tiles.shared : 0;
    sharing_cta = shares ? cta % tiles.shared : 0;
    shared_tile = shares ? alone * ctas + sharing_cta : -1;
  }

  __host__ __device__ void divide(int chunks_) {
    chunks = chunks_;
    // Time of a warp. CTAs that share a tile have the most columns; the others take more slices, the last of the list.
    // These must be stored before the end by the time that gemm2 takes for the chunks that they are of.
    constexpr int kSliceTime = kWarpSteps1 * kStepTime1, kCutTime = kCutSteps * kStepTime1;
    const int slices = chunks * kSlices, sharers = sharing_distance * splits, others = ctas - sharers;
    const auto gemm2 = [&](int n) {
      return (alone * n + (sharers > 0 ? (n + splits - 1) / splits : 0)) * (kWarpSteps2 * kStepTime2);
    };
    const int last_round = (others + kSlices - 1) / kSlices, last = gemm2(last_round < chunks ? last_round : chunks);
    const int of_sharers = gemm2(chunks), of_alone = alone * chunks * (kWarpSteps2 * kStepTime2);
    const int of_others = of_alone > last ? of_alone : last;
    // The least time in which all slices fit, from where it would be if all CTAs had the same; at most a slice above.
    // Of n CTAs that take one half more than whole slices, each two share a slice.
    const bool may_cut = kCutSteps > 0 && ctas <= 2 * kMaxCuts;
    int time = (slices * kSliceTime + sharers * of_sharers + others * of_others) / ctas;
    const auto fit = [&](int columns) { return time > columns ? (time - columns) / kSliceTime : 0; };  // whole slices
    const auto pairs = [&](int n, int columns) {
      return may_cut && time - columns - fit(columns) * kSliceTime >= kSliceTime - kCutTime ? n / 2 : 0;
    };
    const auto whole_slices = [&] { return sharers * fit(of_sharers) + others * fit(of_others); };
    const auto all_fit = [&] {
      return whole_slices() + pairs(sharers, of_sharers) + pairs(others, of_others) >= slices;
    };
    int step = 1;
    while (2 * step <= kSliceTime) step *= 2;
    for (; step > 0; step /= 2) {  // the least is one of the 2 step from `time` on
      time += step - 1;
      const bool enough = all_fit();
      time += enough ? 1 - step : 1;
    }

    // In that time as few as possible are cut. If none, sharers take one slice fewer than fit, and as many of them as
    // are needed another one, the last of them first: these may have fewer columns.
    const int cuts = slices > whole_slices() ? slices - whole_slices() : 0, most = pairs(others, of_others);
    const int others_cuts = cuts < most ? cuts : most, sharers_cuts = cuts - others_cuts;
    rounds = fit(of_sharers) - (cuts == 0 && fit(of_sharers) > 0);
    const int left = slices - cuts - rounds * ctas, of_the_others = others * (fit(of_others) - rounds);
    const int ones = left > of_the_others ? left - of_the_others : 0;
    // The list: rounds; the sharers' ones or halves; the others' slices, and then their halves.
    const int turn = cta < sharers ? sharers - 1 - cta : cta - sharers;
    distance = others;
    if (cta < sharers) {
      more = rounds * ctas + turn;
      whole = rounds + (turn < ones);
      cut = turn / 2 < sharers_cuts ? turn / 2 : -1;
      cut_slice = rounds * ctas + turn / 2;
    } else {
      more = rounds * ctas + ones + sharers_cuts + turn;
      whole = rounds + (left - ones - turn + others - 1) / others;
      cut = turn / 2 < others_cuts ? sharers_cuts + turn / 2 : -1;
      cut_slice = slices - others_cuts + turn / 2;
    }
    half = turn % 2;
  }

  // The CTA's piece number `item`. Pieces are in the order of the list; a half is the last one.
  __host__ __device__ Piece piece(int item) const {
    if (item < whole) return {item < rounds ? item * ctas + cta : more + (item - rounds) * distance, 0, kNumKBlocks1};
    if (item > whole || cut < 0) return {-1, 0, 0};
    return {cut_slice, half * kCutSteps * kWarps, half == 0 ? kCutSteps * kWarps : kNumKBlocks1};
  }

  // Column tiles are in places 0 to places() - 1; the last may be shared.
  __host__ __device__ int places() const { return alone + (shared_tile >= 0); }
  __host__ __device__ int column_tile(int place) const { return place < alone ? place * ctas + cta : shared_tile; }
  // gemm2's order: chunk by chunk, each for the column tiles of all places, but a shared one's for some chunks only.
  // From a place, first chunk 0 and place -1, moves to the next; false where there is none.
  __host__ __device__ bool next_place(int& chunk, int& place) const {
    if (places() == 0) return false;
    do {
      if (++place >= places()) place = 0, chunk++;
    } while (chunk < chunks && place >= alone && chunk % splits != split);
    return chunk < chunks;
  }
};
