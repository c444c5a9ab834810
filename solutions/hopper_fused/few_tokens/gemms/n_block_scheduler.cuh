// n_block_scheduler: which n_blocks of h a CTA computes in gemm1. Static: every warp of the CTA computes the same list.
//
// The n_blocks of all m_blocks form one queue: in wave w, CTA c takes pair w * CTAs + c. So h of the first m_blocks is
// complete long before that of the last, and gemm2 begins with them while other CTAs still compute gemm1.
// A work tile is two neighbouring n_blocks of one m_block, one a warpgroup, or a single n_block.
//
//   last wave     the CTAs without a column tile in gemm2 take one each, or as many as they can finish before the
//                 others reach gemm2's last two m_blocks
//   full waves    before it, of the other n_blocks: every CTA takes the same number, two at a time; the last one alone
//                 if it is odd. What does not make a full wave goes, one each, to the CTAs with a column tile
#pragma once
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

static_assert(Config::kNumNBlocks % 2 == 0, "a work tile's two n_blocks belong to one m_block");

struct Gemm1Tile {
  MBlock m_block;
  int m_block_index;
  int n_block, num_n_blocks;  // the first one; 1 or 2
  int nth;                    // among this CTA's tiles
  // Whether a stage holds a K block for each warpgroup, and the number of stages that the tile takes.
  __device__ bool split_k() const { return num_n_blocks == 1 && m_block.rows <= Config::kGemm1SplitKRows; }
  __device__ int k_iters() const { return split_k() ? Config::kKSteps1 / 2 : Config::kKSteps1; }
  // The i-th K block that the tile takes. i is even where a stage holds two.
  __device__ int k_block(int i) const { return gemm1_k_block(i, n_block); }
};

struct NBlockScheduler {
  const FusedSmem& s;
  int taken = 0;
  __device__ explicit NBlockScheduler(const FusedSmem& smem) : s(smem) {}
  // This CTA's next tile; false when there is none.
  __device__ bool get_next_tile(Gemm1Tile& t) {
    const int cta = blockIdx.x, ctas = gridDim.x, gemm1_only_ctas = ctas - Config::kGemm2Ctas;
    const int n_blocks = s.num_m_blocks * Config::kNumNBlocks;
    // n_blocks in the time of all but two of gemm2's m_blocks, as if both took as long as reading their weights
    const int spare = max(1, (s.num_m_blocks / Config::kCtasPerColumnTile - 2) * (Config::kColumnTile * kIntermediate) /
                                 (2 * Config::kNBlockColumns * kHidden));
    const int shared = max(0, n_blocks - gemm1_only_ctas * spare), full_waves = shared / ctas, pairs = full_waves / 2;
    int at = 2 * (taken * ctas + cta);
    t.num_n_blocks = 2;
    if (taken >= pairs) {
      const int extra = taken - pairs - full_waves % 2;  // n_blocks that this CTA has of the last wave
      const int left = min(Config::kGemm2Ctas, shared % ctas);  // for the CTAs with a column tile
      t.num_n_blocks = 1;
      if (extra < 0) at = 2 * pairs * ctas + cta;  // the odd one of the full waves
      else if (cta >= Config::kGemm2Ctas)
        at = full_waves * ctas + left + extra * gemm1_only_ctas + cta - Config::kGemm2Ctas;
      else at = extra == 0 && cta < left ? full_waves * ctas + cta : n_blocks;
      if (at >= n_blocks) return false;
    }
    t.nth = taken++;
    t.m_block_index = at / Config::kNumNBlocks;
    t.n_block = at % Config::kNumNBlocks;
    t.m_block = s.m_block[t.m_block_index];
    return true;
  }
};

}  // namespace hopper_fused
