// fused_layer: scratch, arguments, shared memory and named barriers of the one launch.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/layer/arguments.cuh"
#include "common/cuda/pipeline/barriers.cuh"
#include "mma_fused/one_launch/config.cuh"
#include "mma_fused/one_launch/tile_scheduler.cuh"

namespace mma_fused {

struct MBlock {
  uint16_t expert, rows;
  uint32_t first_row;  // a multiple of 8
};

// ---- global scratch ----

// The calls of a stream share it. The first kZeroedBytes are zero before and after each launch.
struct FusedScratch {
  unsigned counters[16];                       // see Counter
  unsigned n_blocks_stored[Config::kMaxMBlocks];    // of each m_block: n_blocks whose h is stored
  unsigned split_k_stored[Config::kMaxSplitTiles];  // of each split-K tile: 1 when the first part's sums are stored
  unsigned slabs_stored[Config::kNumColumnTiles];   // of each shared column tile: CTAs whose slab is complete
  uint32_t mask[Config::kMaxTokens * kMaskWords];   // [batch of 32 tokens][word][token]; bit e: a row of local expert e
  float weight[Config::kMaxTokens][kNumLocalExperts];  // routing weight, where the bit is set
  float4 split_k_sums[Config::kMaxSplitTiles][Config::kMaxNTiles][Config::kMTiles]
                     [kWarp];                            // of first parts, as sum_over_warps gives them
  float h_scale[Config::kMaxRows][Config::kNumNBlocks];  // powers of two
  // fp16; h includes the routing weight. Within a row and K block, 16-byte chunk 4 j + t holds columns 32 t + 8 j to
  // 32 t + 8 j + 7, so that lanes t = 0 to 3 of gemm2 read 64 neighbouring bytes. With MXFP4 weights chunk c holds
  // columns 8 c to 8 c + 7, the even ones first.
  alignas(256) uint16_t h[Config::kMaxRows][kIntermediate];
};
enum Counter { kRouted, kFinished };
constexpr size_t kZeroedBytes = offsetof(FusedScratch, mask);

// ---- arguments ----

struct FusedArgs : LayerArgs {
  const uint8_t* w1;  // [E_local, 2 I, H]; with MXFP4 weights H and I are half as many bytes
  const uint8_t* w2;  // [E_local, H, I]
  FusedScratch* scratch;
  float* sums;  // [local tile][CTA][token][kColumnTile] fp32
  // W13's scales for an n_block, of its first half's K block 0; those of the second are kSecondScales later.
  static constexpr int kSecondScales = kIntermediate / kBlockK * kNumKBlocks1;
  __device__ const float* w1_scales(int expert, int n_block) const {
    return w1_scale + (expert * 2 * kIntermediate + n_block * Config::kNBlockColumns) / kBlockK * kNumKBlocks1;
  }
  // W2's scales for a column tile, of K block 0.
  __device__ const float* w2_scales(int expert, int column_tile) const {
    return w2_scale + (expert * kHidden + column_tile * Config::kColumnTile) / kBlockK * kNumKBlocks2;
  }
  // Scales of MXFP4 weights: [E_local, 2 I, H / 32] and [E_local, H, I / 32], in a byte each.
  __device__ const uint8_t* w1_scale_bytes() const { return reinterpret_cast<const uint8_t*>(w1_scale); }
  __device__ const uint8_t* w2_scale_bytes() const { return reinterpret_cast<const uint8_t*>(w2_scale); }
  // A CTA's output sums of one of its column tiles. Other CTAs read them if they share the tile, at the end.
  __device__ float* slab(int local_tile, int cta, int ctas) const {
    return sums + ((size_t)local_tile * ctas + cta) * num_tokens * Config::kColumnTile;
  }
};

// Not read where weights come by cp.async. With MXFP4 weights H, I and 128 are half as many bytes.
struct TensorMaps {
  CUtensorMap w1;  // [E_local][I / 8][half][8 rows][H]; box: 4 x 2 x 8 rows x 128, the up and gate of an n_block
  CUtensorMap w2;  // [E_local * H, I]; box: 64 x 128, those of a weight tile
};

// ---- shared memory ----

// Needed until the row lists are made; the pipeline's stages overwrite it.
struct Routing {
  uint32_t mask[Config::kMaxTokens * kMaskWords];  // as in FusedScratch; permute makes it [batch][expert], bit t
  Config::RowsBefore
      rows_before[Config::kMaxTokens * kMaskWords];  // [batch][expert]: rows of the expert in earlier batches
  int2 word_sums[kMaskWords];                       // rows and m_blocks of 32 experts
  int first_row[kPaddedLocalExperts];
  float weight[Config::kRouteAllTokens][kNumLocalExperts];  // where every CTA routes all tokens
};

struct TilesAndLists {
  uint8_t stages[Config::kWarps][Config::kStages]
                [Config::kWeightTileBytes];                  // first, as the swizzle wants multiples of 1024 bytes
  float4 warp_sums[Config::kWarps][Config::kMTiles][kWarp];  // each warp's sums for 8 rows, as the MMAs leave them
  float amax[Config::kMTiles][Config::kMmaN];
  Barrier full[Config::kWarps][Config::kStages];  // mbarriers
  MBlock m_blocks[Config::kMaxMBlocks];
  float row_weight[Config::kRouteAllRows];     // where every CTA routes all tokens, else it is in the scratch
  Config::TokenIndex token[Config::kMaxRows];  // not written for padding

  __device__ Routing& routing() { return *reinterpret_cast<Routing*>(stages); }
};

// Tokens that lie in shared memory, and their scales as the caller has them.
template <int kTokens>
struct StagedTokens {
  alignas(16) uint8_t rows[kTokens][Config::kStagedPitch];
  float scales[kTokens * kNumKBlocks1];

  __device__ uint8_t* x(int token) { return rows[token]; }
  __device__ const uint8_t* x(int token) const { return rows[token]; }
  __device__ float* x_scale() { return scales; }
  __device__ const float* x_scale() const { return scales; }
};
template <>
struct StagedTokens<0> {  // nobody asks for them
  __device__ uint8_t* x(int) const { return nullptr; }
  __device__ float* x_scale() const { return nullptr; }
};

// Scales of a K block of MXFP4 weights for the rows of a weight tile: [group][row % 8][row / 8].
constexpr int kGroupK = 32;  // values with one scale
constexpr int kGroups = kBlockK / kGroupK;
using WideScales = float[kGroups][8][Config::kWeightTileRows / 8];

// Scales of the weight tiles in the stages, a word of four bytes for each row, and of the tile that a warp multiplies.
template <bool kMxfp4>
struct StagedScales {
  uint32_t words[Config::kWarps][Config::kStages][Config::kWeightTileRows];
  alignas(16) WideScales wide[Config::kWarps];

  __device__ uint32_t* weight_scales(int warp, int stage) { return words[warp][stage]; }
  __device__ WideScales* wide_scales(int warp) { return &wide[warp]; }
};
template <>
struct StagedScales<false> {  // nobody asks for them
  __device__ uint32_t* weight_scales(int, int) { return nullptr; }
  __device__ WideScales* wide_scales(int) { return nullptr; }
};

struct Smem : TilesAndLists, StagedTokens<Config::kStagedTokens>, StagedScales<kMxfp4Weights> {
  int num_m_blocks;
  TileScheduler scheduler;  // here, as registers are short
};
static_assert(sizeof(Smem) <= Config::kSmemLimit, "a CTA's shared memory");
static_assert(sizeof(Routing) <= sizeof(TilesAndLists::stages), "routing fits where the stages will be");

// ---- barriers ----

// Named barriers: see the table in fused_layer.cu.
using AmaxBarrier = NamedBarrier<1, Config::kMTiles * kWarp>;
using StoredBarrier =
    NamedBarrier<2, (Config::kSignalWarp < Config::kMTiles ? Config::kMTiles : Config::kMTiles + 1) * kWarp>;

// ---- host ----

cudaError_t prepare_fused_layer();  // once for each device
cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);

}  // namespace mma_fused
