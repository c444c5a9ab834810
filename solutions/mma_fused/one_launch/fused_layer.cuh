// fused_layer: scratch, arguments and shared memory of the one launch.
//
// A chunk is up to kChunkRows rows of one expert. A slice is kSliceColumns columns of h of one chunk, which gemm1
// computes from 64 weight rows. A row is a (token, local expert) pair; an expert's rows are padded to whole tiles of 8.
// A unit is 64 weight rows by one K step, what a warp loads and multiplies at a time.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "arguments.cuh"
#include "division.cuh"

// ---- global scratch ----

// The calls of a stream share it. What stands before `mask` is zero before and after each launch.
struct FusedScratch {
  unsigned counters[16];                  // see Counter
  unsigned slices_stored[kMaxChunks];     // slices of each chunk whose h is stored
  unsigned halves_stored[kMaxCuts];       // of each slice that is cut, first halves that are stored
  unsigned sums_added[kColumnTiles];      // CTAs that share the column tile and have all their sums stored
  uint32_t mask[kMaxTokens * kMaskWords];  // [batch of 32 tokens][word][token]; bit e: a row of local expert e
  float weight[kMaxTokens][kNumLocalExperts];        // routing weight, where the bit is set
  float4 first_half[kMaxCuts][kMaxTiles][kMTiles][kWarp];  // sums of slices that are cut, as sum_over_warps has them
  float h_scale[kMaxRows][kSlices];        // a power of two
  // Row by row, K step by K step; in a step, 16-byte piece 4 j + t holds columns 32 t + 8 j to 32 t + 8 j + 7, so that
  // the lanes t = 0 to 3 of a quad read 64 adjoining bytes. fp16; h includes the routing weight.
  alignas(256) uint16_t h[kMaxRows][kIntermediate];
};
enum Counter { kRouted, kFinished };  // CTAs that have done so

// ---- arguments ----

struct FusedArgs : LayerArgs {
  const uint8_t* w1;  // [E_local, 2 I, H]
  const uint8_t* w2;  // [E_local, H, I]
  FusedScratch* scratch;
  float* sums;  // [places][CTA][token][kColumnTile]: sums of the CTA's column tiles, fp32
  // Of a column tile's place. The slab is written and read by one CTA, except a shared tile's at the end.
  __device__ float* slab(int place, int cta, int ctas) const {
    return sums + ((size_t)place * ctas + cta) * num_tokens * kColumnTile;
  }
};

// Not read where weights come by cp.async.
struct TensorMaps {
  CUtensorMap w1;  // [E_local][I / 8][half][8 rows][H]; box: 4 times both halves, the 64 rows of a slice
  CUtensorMap w2;  // [E_local * H, I]; box: 64 x 128
};

struct Chunk {
  uint16_t expert, rows;
  uint32_t first_row;  // a multiple of 8
};

// ---- shared memory ----

// Needed until the row lists are made; the stages overwrite it.
struct Routing {
  uint32_t mask[kMaxTokens * kMaskWords];    // as in FusedScratch; permute transposes it: [batch][expert], bit t
  uint32_t before[kMaxTokens * kMaskWords];  // [batch][expert]: rows of the expert in earlier batches
  int2 word_sums[kMaskWords];                // rows and chunks of 32 experts
  int first_row[kPaddedLocalExperts];
  float weight[kRouteAllTokens][kNumLocalExperts];  // where every CTA routes all tokens
};

struct Smem {
  uint8_t stages[kWarps][kStages][kUnitBytes];  // first: the swizzle counts rows from multiples of 1024 bytes
  float4 parts[kWarps][kMTiles][kWarp];  // each warp's sums of one tile of 8 rows, as MMA has them
  float amax[kMTiles][kMmaN];
  uint64_t full[kWarps][kStages];  // mbarriers
  Chunk chunk[kMaxChunks];
  float row_weight[kRouteAllRows];  // where every CTA routes all tokens, else it is in the scratch
  uint16_t token[kMaxRows];         // not written for padding
  int num_chunks;
  bool finishes_last;  // this CTA
  Division division;  // here, as registers are short

  __device__ Routing& routing() { return *reinterpret_cast<Routing*>(stages); }
};
static_assert(sizeof(Smem) <= kSmemLimit, "a CTA's shared memory");
static_assert(sizeof(Routing) <= sizeof(Smem::stages), "routing fits where the stages will be");

constexpr int kBarAmax = 1, kBarStored = 2;  // named barriers

cudaError_t prepare_fused_layer();  // once for each device
cudaError_t launch_fused_layer(const TensorMaps& maps, const FusedArgs& args, int ctas, cudaStream_t stream);
