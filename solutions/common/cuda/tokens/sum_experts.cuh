// sum_experts: where each local expert's rows begin, for one batch of up to 32 tokens. It sums by ballots, because with
// scans by shuffles the row lists took 0.6 to 1.3 us longer.
#pragma once
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/pipeline/threads.cuh"

struct ExpertSums {
  // Experts that have rows; atoms of kAtomRows rows, of which each expert has whole ones.
  int experts, atoms;
};

// For all threads of a CTA. Lane l of warp w has local expert 32 w + l; warps from kMaskWords on have none.
//   rows          rows of the lane's expert, at most 32
//   word_sums     kMaskWords ints of shared memory
//   before, all   written: the sums over the experts before the lane's, and over all experts
template <int kAtomRows>
__device__ __forceinline__ void sum_experts(int rows, int* word_sums, ExpertSums& before, ExpertSums& all) {
  static_assert(32 / kAtomRows < 8 && kMaskWords <= kWarp, "atoms of a lane have three bits, and a lane reads one sum");
  constexpr int kAtom = 65536;  // one atom: atoms are counted in the upper half of an int, experts in the lower
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned lower = (1u << lane) - 1;
  const int atoms = (rows + kAtomRows - 1) / kAtomRows;
  int sum = 0;
  if (warp < kMaskWords) {
    const auto count = [&](bool bit) { return __popc(__ballot_sync(kFullWarp, bit) & lower); };
    sum = count(rows > 0) + kAtom * (count(atoms & 1) + 2 * count(atoms & 2) + 4 * count(atoms & 4));
    if (lane == kWarp - 1) word_sums[warp] = sum + (rows > 0) + kAtom * atoms;
  }
  __syncthreads();
  const int words = lane < kMaskWords ? word_sums[lane] : 0;
  sum += __reduce_add_sync(kFullWarp, lane < warp ? words : 0);
  const int total = __reduce_add_sync(kFullWarp, words);
  before = {sum % kAtom, sum / kAtom};
  all = {total % kAtom, total / kAtom};
}
