// The tile queue of a grouped GEMM as route_permute writes it, for programs of the host that include grouped_layer.cuh
// or the GEMMs before.
#pragma once
#include <vector>

struct Queue {
  hopper_fused::TileQueues sizes = {};
  int singles = 0;  // m_blocks without a pair
  std::vector<hopper_fused::QueuePlace> places;
  std::vector<uint2> entries;

  // rows: of each expert.
  Queue(const std::vector<int>& rows, int n_block_pairs, bool is_gemm1, int clusters) {
    using namespace hopper_fused;
    for (int expert = 0; expert < (int)rows.size(); expert++) {
      const int padded = (rows[expert] + Grouped::kRowAlign - 1) / Grouped::kRowAlign * Grouped::kRowAlign;
      const MBlocks blocks(padded);
      sizes.long_entries += blocks.long_entries();
      sizes.short_entries += blocks.short_entries();
      singles += blocks.rest > 0;
      places.push_back({expert, padded, sizes.rows, sizes.long_entries, sizes.short_entries, 0, 0, singles, 0});
      sizes.rows += padded;
      sizes.experts += padded > 0;
    }

    const int m_block_entries = sizes.long_entries + sizes.short_entries;
    const bool by_cta = is_gemm1 && Grouped::kOddNBlocks;  // two words for each CTA
    entries.resize(by_cta ? 2 * (gemm1_entries(m_block_entries - singles) + gemm1_entries(singles))
                          : m_block_entries * n_block_pairs);
    for (QueuePlace& place : places) {
      place.long_entries = sizes.long_entries;
      place.short_entries = sizes.short_entries;
      place.singles = singles;
      if (place.expert_rows == 0) continue;
      const bool before = place.before_last_wave(clusters);
      for (int thread = 0; thread < 3; thread++) {
        if (by_cta) write_gemm1_entries(entries.data(), place, before, thread, 3);
        else write_entries(entries.data(), n_block_pairs, place, before, thread, 3);
      }
    }
  }
};
