// Runs one of hopper_fused's grouped GEMMs in one cluster: hopper_gemms GEMM H_SPLIT SEED WITHOUT ROWS...
// ROWS: of each expert. Prints the places that synchronise, or what is wrong, with exit status 1.
#include <cstdlib>
#include <vector>

#include "hopper_machine.h"

#include "grouped_gemm1.cu"
#include "grouped_gemm2.cu"

#include "hopper_queue.h"

using namespace hopper_fused;

static void set_maps(CUtensorMap& maps, const CUtensorMap& w2) { maps = w2; }
static void set_maps(WeightAndResultMaps& maps, const CUtensorMap& w2) { maps = {w2, {kWarpRows * kAtomRowBytes}}; }

int main(int count, char** arguments) {
  const bool is_gemm1 = atoi(arguments[1]) == 1;
  const bool splits_h = atoi(arguments[2]) == 2;
  std::vector<int> rows;
  for (int i = 5; i < count; i++) rows.push_back(atoi(arguments[i]));

  GroupedArgs args = {};
  args.y_columns = y_columns_of(1);
  const int n_block_pairs = is_gemm1 ? Grouped::kNumNBlocks1 / 2 : args.y_columns / (2 * Grouped::kBlockN);
  const Queue queue(rows, n_block_pairs, is_gemm1, 1);
  Counters counters = {};
  counters.queues = queue.sizes;
  counters.singles = queue.singles;
  const size_t all_rows = queue.sizes.rows + Grouped::kBlockM;
  std::vector<float> row_weight(all_rows);
  std::vector<int> row_token(all_rows);
  std::vector<float> x_scale(all_rows * kNumKBlocks1);
  std::vector<float> h_scale(all_rows * Grouped::kNumNBlocks1);
  std::vector<uint16_t> y(all_rows * args.y_columns);
  std::vector<float> y_scale(all_rows * args.y_columns / kBlockK + 2);
  std::vector<float> w_scale(kNumLocalExperts * 2 * kNumKBlocks1 * kNumKBlocks2 + 64);
  for (size_t i = 0; i < all_rows; i++) row_token[i] = 1;  // all rows are copied

  args.counters = &counters;
  args.queue1 = args.queue2 = const_cast<uint2*>(queue.entries.data());
  args.row_weight = row_weight.data();
  args.row_token = row_token.data();
  args.row_x_scale = x_scale.data();
  args.h_scale = h_scale.data();
  args.y = y.data();
  args.y_scale = y_scale.data();
  args.w1_scale = args.w2_scale = w_scale.data();
  args.clusters = 1;
  const CUtensorMap map = {Grouped::kWBoxBytes};
  Gemm2Maps maps;
  set_maps(maps, map);

  const auto kernel = [&] {
    if (is_gemm1) splits_h ? grouped_gemm1<2>(map, args) : grouped_gemm1<1>(map, args);
    else splits_h ? grouped_gemm2<2>(maps, args) : grouped_gemm2<1>(maps, args);
  };
  run_cluster(kernel, atoi(arguments[3]), arguments[4]);
}
