// producer: the warps of the producer warpgroup. Two fill the ring of stages that both GEMMs use without a break, and
// walk the same tiles as the consumers: all of gemm1's, then all of gemm2's.
//
//   load_weights       warp 8: W13, then W2, by TMA. Reads no global counter, so weights are in flight, as far as the
//                      ring reaches, while other CTAs still gather x or store h
//   load_activations   warp 9: x when all CTAs have gathered, h when its m_block is complete, and their scales, by bulk
//                      copy; exchange_partials and reset_counters after it
//   signal_stored_h    warps 10 and 11: count for the other CTAs the n_blocks that warpgroup 0 or 1 has stored
#pragma once
#include <type_traits>

#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/counter.cuh"
#include "hopper_fused/few_tokens/fused_layer.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "hopper_fused/few_tokens/gemms/n_block_scheduler.cuh"
#include "common/cuda/pipeline/pipeline.cuh"
#include "hopper_fused/sizes.cuh"
#include "common/cuda/ptx/tma.cuh"
#include "common/cuda/pipeline/wait_for_h.cuh"
#include "hopper_fused/few_tokens/all_reduce/peers.cuh"
#include "common/cuda/layer/weights.cuh"

namespace hopper_fused {

constexpr int kNBlockGroups =
    Config::kNBlockColumns / kAtomRows;  // groups of 8 rows of each half of W13: an n_block's box

// ---- weights ----

// For one thread, while its CTA waits for the other CTAs' routing: prefetches weights to L2. It guesses that the first
// experts all have rows, and takes what the CTA needs first in that case. A wrong guess costs bytes at a time when
// memory has little else to do.
__device__ __forceinline__ void prefetch_first_weights(const TensorMaps& maps) {
  const uint64_t policy = l2_evict_unchanged();
  const int expert = 2 * blockIdx.x / Config::kNumNBlocks, n_block = 2 * blockIdx.x % Config::kNumNBlocks;
  if (expert >= kNumLocalExperts) return;
  for (int k = 0; k < Config::kStages; k++)
    for (int b = 0; b < 2; b++)
      tma_prefetch_5d(&maps.w1, k * kBlockK, 0, 0, (n_block + b) * kNBlockGroups, expert, policy);
}

// Prefetches scales of MXFP4 weights to L2: `rows` rows of `row_bytes` each. Consumers read them from memory
// themselves.
__device__ __forceinline__ void prefetch_scales(const uint8_t* scales, size_t first_row, int rows, int row_bytes) {
  bulk_prefetch(scales + first_row * row_bytes, rows * row_bytes);
}

// For one thread: loads the weights of all of the CTA's tiles, gemm1's and then gemm2's.
//
// For a tile that bypasses the gather (kBypassTokens, config.cuh) it also loads the row of x, in front of the first
// weights: if warp 9 requested it, as it does for other tiles, the row would come from memory behind the weights. So
// that the stage's barrier still completes, this thread then arrives at `full` for warp 9 as well.
//
// kBf16: the caller's tokens are bf16, and the row, quantised by this CTA, is in shared memory already.
// has_column_tile: whether the CTA takes part in gemm2.
template <bool kBf16>
__device__ __forceinline__ void load_weights(FusedSmem& s, const TensorMaps& maps, const FusedArgs& args,
                                             bool has_column_tile) {
  const uint64_t policy = s.num_m_blocks <= kEvictFirstExperts ? l2_evict_first() : l2_evict_unchanged();
  PipelineState<Config::kStages> pipe;
  Gemm1Tile tile;
  int bypass_tiles = 0;

  // gemm1
  for (NBlockScheduler scheduler(s); scheduler.get_next_tile(tile);) {
    // a stage's second weight tile: of the next n_block, or of the next K block
    const int boxes = tile.num_n_blocks == 2 || tile.split_k() ? 2 : 1;
    const int next_k = tile.split_k() ? 1 : 0, next_n_block = tile.num_n_blocks - 1;
    const bool bypass = tile.m_block.bypasses_gather(args.num_tokens);

    if constexpr (kMxfp4Weights) {
      const int rows =
          min(tile.num_n_blocks * Config::kNBlockColumns, kIntermediate - tile.n_block * Config::kNBlockColumns);
      const size_t first = (size_t)tile.m_block.expert * 2 * kIntermediate + tile.n_block * Config::kNBlockColumns;
      if (rows > 0) {
        prefetch_scales(args.w1_bytes(), first, rows, kHidden / 32);
        prefetch_scales(args.w1_bytes(), first + kIntermediate, rows, kHidden / 32);
      }
    }

    for (int i = 0; i < tile.k_iters(); i++, pipe.advance()) {
      const int stage = pipe.stage, k = tile.k_block((1 + next_k) * i);
      s.empty[stage].wait(pipe.phase ^ 1);
      if constexpr (kMxfp4Weights) fence_proxy_async_shared();  // consumers read these weights by generic loads
      if (!kBf16 && bypass && i == 0) {
        // The row of two tiles ago lay in this buffer. Nobody reads it any more: the previous tile has filled this
        // stage, and both warpgroups have released it.
        s.full[stage].expect(kHidden);
        bulk_load(s.bypass_row(tile.nth), args.x + (size_t)s.token[tile.m_block.first_row] * kHidden, kHidden,
                  s.full[stage], l2_evict_last());
      }
      if (bypass) s.full[stage].arrive();
      s.full[stage].arrive_and_expect(boxes * Config::kWeightTileBytes);
      for (int b = 0; b < boxes; b++)
        tma_load_5d(s.stage(stage) + b * Config::kWeightTileBytes, &maps.w1, s.full[stage], (k + b * next_k) * kBlockK,
                    0, 0, (tile.n_block + b * next_n_block) * kNBlockGroups, tile.m_block.expert, policy);
    }

    // Warp 9 skips this tile's stages once this thread has filled them. It is then at most one such tile behind.
    if (bypass) {
      if (bypass_tiles > 0) s.bypass_skipped.wait((bypass_tiles - 1) % 2);
      s.bypass_loaded.arrive();
      bypass_tiles++;
    }
  }

  // gemm2
  if (!has_column_tile) return;
  for (int n = blockIdx.x / Config::kNumColumnTiles; n < s.num_m_blocks; n += Config::kCtasPerColumnTile) {
    const MBlock m_block = s.m_block[n];
    const int stage_k = m_block.split_k() ? 2 : 1;  // weight tiles of a stage; kHalfStage2's last stage has one
    if constexpr (kMxfp4Weights)
      prefetch_scales(args.w2_bytes(),
                      (size_t)m_block.expert * kHidden + blockIdx.x % Config::kNumColumnTiles * Config::kColumnTile,
                      Config::kColumnTile, kIntermediate / 32);
    for (int i = 0; i < m_block.k_iters(); i++, pipe.advance()) {
      const int stage = pipe.stage;
      s.empty[stage].wait(pipe.phase ^ 1);
      if constexpr (kMxfp4Weights) fence_proxy_async_shared();
      const int tiles = Config::kHalfStage2 && (i + 1) * stage_k > Config::kKSteps2 ? 1 : stage_k;
      s.full[stage].arrive_and_expect(tiles * Config::kWeightTileBytes);
      for (int k = 0; k < tiles; k++)
        tma_load_2d(s.stage(stage) + k * Config::kWeightTileBytes, &maps.w2, s.full[stage], (stage_k * i + k) * kBlockK,
                    m_block.expert * kHidden + blockIdx.x % Config::kNumColumnTiles * Config::kColumnTile, policy);
    }
  }
}

// ---- activations ----

// Waits until a stage may be filled again, its scales too. The consumers read scales by generic loads, and a bulk copy
// overwrites them through the async proxy: between the two the barrier's order is not enough, and a proxy fence must
// follow. The rest of a stage is read by wgmma, in the async proxy itself, so load_weights needs no fence.
__device__ __forceinline__ void wait_for_empty_scales(FusedSmem& s, const PipelineState<Config::kStages>& pipe) {
  s.empty[pipe.stage].wait(pipe.phase ^ 1);
  fence_proxy_async_shared();
}

// For a whole warp, whose first lane copies the rows and scales of all of the CTA's tiles: x for gemm1, then h for
// gemm2. A stage takes two bulk copies only, one of rows and one of scales: to issue one costs about 50 cycles, however
// small it is.
__device__ __forceinline__ void load_activations(FusedSmem& s, const FusedArgs& args, bool has_column_tile) {
  const FusedScratch& scratch = *args.scratch;
  const uint64_t policy = l2_evict_last();
  const bool copies = threadIdx.x % kWarp == 0;
  // The named barrier orders the stores of all consumers before the release. At the other end a proxy fence comes
  // between the acquire and the bulk copy.
  GatheredBarrier::sync();
  if (copies) counter_arrive(&args.scratch->counters[kGathered]);
  bool gathered = false;
  int bypass_tiles = 0;
  PipelineState<Config::kStages> pipe;
  Gemm1Tile tile;

  // gemm1: x
  for (NBlockScheduler scheduler(s); copies && scheduler.get_next_tile(tile);) {
    const MBlock& m_block = tile.m_block;
    const int stage_k = tile.split_k() ? 2 * Config::kStepBlocks : Config::kStepBlocks;  // K blocks of a stage
    const int bytes = m_block.atoms() * stage_k * kAtomBytes;
    if (m_block.bypasses_gather(args.num_tokens)) {
      // load_weights alone fills these stages. This warp skips them when load_weights has filled them, neither sooner
      // nor much later: its next wait for `empty` goes by the parity of the pass over the ring, and passes 1 and 3 have
      // the same.
      s.bypass_loaded.wait(bypass_tiles++ % 2);
      s.bypass_skipped.arrive();
      pipe.advance(tile.k_iters());
      continue;
    }
    if (!gathered) {
      counter_wait(&scratch.counters[kGathered], gridDim.x);
      fence_proxy_async_global();
      gathered = true;
    }
    for (int i = 0; i < tile.k_iters(); i++, pipe.advance()) {
      const int stage = pipe.stage, scale_bytes = m_block.atoms() * stage_k * kAtomRows * (int)sizeof(float);
      wait_for_empty_scales(s, pipe);
      s.full[stage].arrive_and_expect(bytes + scale_bytes);
      const int k = Config::kStepBlocks * tile.k_block(stage_k / Config::kStepBlocks * i);
      bulk_load(s.stage(stage) + Config::kStageWeightBytes, scratch.x + m_block.x_offset(k), bytes, s.full[stage],
                policy);
      bulk_load(s.scales[stage], scratch.x_scale + m_block.x_scale_offset(k), scale_bytes, s.full[stage], policy);
    }
  }

  // gemm2: h
  if (!has_column_tile) return;
  __syncwarp();
  for (int n = blockIdx.x / Config::kNumColumnTiles, ready = 0; n < s.num_m_blocks; n += Config::kCtasPerColumnTile) {
    if (n >= ready) ready = wait_for_h<true>(scratch.n_blocks_stored, Config::kNumNBlocks, n, s.num_m_blocks);
    if (!copies) continue;
    const MBlock m_block = s.m_block[n];
    const int tiles = m_block.split_k() ? 2 : 1,
              stage_k = tiles * Config::kStepBlocks;  // weight tiles, K blocks of a stage
    const int bytes = m_block.atoms() * stage_k * 2 * kAtomBytes;
    for (int i = 0; i < m_block.k_iters(); i++, pipe.advance()) {
      const int stage = pipe.stage;
      const int parts = Config::kHalfStage2 && (i + 1) * tiles > Config::kKSteps2 ? 2 : 1;  // of which one is loaded
      const int h_bytes = bytes / parts;
      const int scale_bytes =
          m_block.atoms() * stage_k * kAtomRows * Config::kNBlocksPerKBlock * (int)sizeof(float) / parts;
      wait_for_empty_scales(s, pipe);
      s.full[stage].arrive_and_expect(h_bytes + scale_bytes);
      bulk_load(s.stage(stage) + tiles * Config::kWeightTileBytes, scratch.h + m_block.h_offset(stage_k * i), h_bytes,
                s.full[stage], policy);
      bulk_load(s.scales[stage], scratch.h_scale + m_block.h_scale_offset(stage_k * i), scale_bytes, s.full[stage],
                policy);
    }
  }
}

// ---- counters ----

// For a whole warp, while the consumers are in reduce_column_tile: tells the other CTAs of the column tile that this
// one has stored its partial sums, waits until each of them has, and tells the consumers.
__device__ __forceinline__ void exchange_partials(const FusedArgs& args) {
  unsigned* stored = &args.scratch->partials_stored[blockIdx.x % Config::kNumColumnTiles];
  PartialsBarrier::sync();
  if (threadIdx.x % kWarp == 0) {
    counter_arrive(stored);
    counter_wait(stored, Config::kCtasPerColumnTile);
  }
  __syncwarp();
  AllPartialsBarrier::arrive();
}

// For a whole warp, when its CTA reads no counter any more: the last CTA that comes here sets all counters to zero for
// the next launch. No CTA counts up any more, as those with column tiles have seen all m_blocks complete. The other
// warps still compute meanwhile: at the kernel's end the round trip to L2 took 0.3 us.
// With ReducedArgs (a sum over ranks) it also ends the epoch, which every CTA has read.
template <class Args>
__device__ __forceinline__ void reset_counters(const FusedSmem& s, const Args& args) {
  FusedScratch& scratch = *args.scratch;
  const int lane = threadIdx.x % kWarp;
  const bool last = lane == 0 && counter_arrive_last(&scratch.counters[kFinished], gridDim.x);
  if (!__any_sync(kFullWarp, last)) return;
  __syncwarp();  // what lane 0 acquired
  if constexpr (std::is_same_v<Args, ReducedArgs>)
    if (lane == 0) ++*epoch_place(args.peers);
  for (int i = kRouted + lane; i <= kFinished; i += kWarp) scratch.counters[i] = 0;
  for (int n = lane; n < s.num_m_blocks; n += kWarp) scratch.n_blocks_stored[n] = 0;
  for (int n = lane; Config::kCtasPerColumnTile > 1 && n < Config::kNumColumnTiles; n += kWarp)
    scratch.partials_stored[n] = 0;
}

// ---- signals ----

// For one warp for each consumer warpgroup: counts every n_block that the warpgroup has stored, for the other CTAs,
// which wait in wait_for_h. The named barrier orders the warpgroup's stores before the release. The release takes a
// round trip to L2, during which the warpgroup already computes its next tile.
__device__ __forceinline__ void signal_stored_h(const FusedSmem& s, const FusedArgs& args, int warpgroup) {
  Gemm1Tile tile;
  for (NBlockScheduler scheduler(s); scheduler.get_next_tile(tile);) {
    if (warpgroup == 1 && tile.num_n_blocks == 1) continue;
    HStoredBarrier::sync_unaligned(warpgroup);
    if (threadIdx.x % kWarp == 0) counter_arrive(&args.scratch->n_blocks_stored[tile.m_block_index]);
  }
}

}  // namespace hopper_fused
