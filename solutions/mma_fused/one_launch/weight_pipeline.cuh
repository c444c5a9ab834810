// weight_pipeline: each warp's own pipeline of weight tiles, through kStages stages of its own in shared memory.
//
// The warp is producer and consumer: it loads a stage again as soon as its lanes have read it. The pipeline goes
// through the warp's weight tiles of gemm1 and then of gemm2 without a break, kStages ahead of the MMAs. Weights depend
// on no other data, so they keep arriving while the warp waits for h or adds up sums.
//
// A weight tile lies in its stage in TMA's swizzle for rows of its width: see swizzled(). With MXFP4 weights its scales
// come to an array of their own, always by cp.async, also where the weights come by TMA.
#pragma once
#include "common/cuda/pipeline/barriers.cuh"
#include "common/cuda/ptx/cp_async.cuh"
#include "mma_fused/one_launch/fused_layer.cuh"
#include "common/cuda/ptx/l2.cuh"
#include "common/cuda/ptx/tma.cuh"

namespace mma_fused {

// Up to so many m_blocks W13's L2 policy is evict_first, above it is evict_unchanged. On an H200 a call is 1 to 3%
// faster with evict_first at 1 and 7 tokens, and 2% faster with evict_unchanged at 16 to 128; the bound lies between.
constexpr int kEvictFirstMBlocks = 12;

// Which of the warps that divide K in gemm2 a warp is, and which 64 columns of the column tile it has.
__device__ __forceinline__ int gemm2_warp(int warp) {
  return Config::kColumnHalves == 1 ? warp : warp % Config::kGemm2Warps;
}
__device__ __forceinline__ int column_half(int warp) {
  return Config::kColumnHalves == 1 ? 0 : warp / Config::kGemm2Warps;
}

// Returns at which 16-byte chunk of a row in shared memory the weight tile's chunk `chunk` lies.
__device__ __forceinline__ int swizzled(int chunk, int row) {
  return Config::kTileRowBytes == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4;
}
// Returns which row of W13 or W2, counted from the weight tile's first one, is the tile's row `row`. In gemm1 eight
// rows of W13's first half are followed by eight of its second, as in TensorMaps.
__device__ __forceinline__ size_t source_row(bool gemm2, int row) {
  return gemm2 ? row : row / 16 * 8 + row % 8 + row / 8 % 2 * kIntermediate;
}

// Which weight tile a warp loads next: K blocks warp, warp + kWarps, ... of each of the CTA's tiles.
struct WeightTileIterator {
  bool gemm2 = false, done = false;
  int item = -1;                     // gemm1: the CTA's work item
  int m_block = 0, local_tile = -1;  // gemm2
  int tile = 0;                      // gemm1: in the list of tiles; gemm2: the column tile
  int k = 0, end_k = 0;              // K block, and where the tile's K blocks end. At first as if a tile had ended

  __device__ void advance(const TileScheduler& scheduler, int warp) {
    k += Config::kWarps;
    while (!done && k >= end_k) {
      if (!gemm2) {
        const WorkItem next = scheduler.work_item(++item);
        tile = next.tile, k = next.first_k + warp, end_k = next.end_k;
        gemm2 = tile < 0;
      }
      if (gemm2) {
        k = gemm2_warp(warp), end_k = kNumKBlocks2;
        done = !scheduler.next_gemm2(m_block, local_tile);
        if (!done) tile = scheduler.column_tile(local_tile);
      }
    }
  }
};

struct WeightPipeline {
  Smem& s;
  const TensorMaps& maps;
  const FusedArgs& args;
  const int warp, lane;
  static constexpr bool kCpAsync = !Config::kTma || kMxfp4Weights;  // the weights, or their scales, come by cp.async
#if MMA_FUSED_TMA
  const uint64_t w1_policy = s.num_m_blocks <= kEvictFirstMBlocks ? l2_evict_first() : l2_evict_unchanged();
#endif
  WeightTileIterator loaded;  // the last weight tile that was requested
  int stage = 0, phase = 0;   // of the weight tile that the warp multiplies next

  // Fills all stages. With kShortTiles gemm1_swiglu() does that instead.
  __device__ WeightPipeline(Smem& smem, const TensorMaps& maps_, const FusedArgs& args_)
      : s(smem),
        maps(maps_),
        args(args_),
        warp(__shfl_sync(kFullWarp, threadIdx.x / kWarp, 0)),  // uniform, and the compiler knows it
        lane(threadIdx.x % kWarp) {
    if constexpr (!Config::kShortTiles) fill();
  }
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < Config::kStages; i++) load(i, 0);
  }

  // Waits for the next weight tile. Returns its stage.
  __device__ const uint8_t* consumer_wait() const {
#if MMA_FUSED_TMA
    s.full[warp][stage].wait(phase);
#endif
    if constexpr (kCpAsync) {
      cp_async_wait<Config::kStages - 1>();
      __syncwarp();  // the other lanes' copies
    }
    return s.stages[warp][stage];
  }

  // MXFP4: the scales of the weight tile that consumer_wait() returned.
  __device__ const uint32_t* scales() const { return s.weight_scales(warp, stage); }
  __device__ WideScales& wide_scales() const { return *s.wide_scales(warp); }

  // Called by a lane when it has read the weight tile; `read` depends on all bits that it has read. When all lanes have
  // called it, the stage is loaded again.
  __device__ void consumer_release(uint32_t read) {
    __syncwarp();
    load(stage, read);
    if (++stage == Config::kStages) stage = 0, phase ^= 1;
  }

 private:
  // gemm2: the weight tile's first row of the expert's W2.
  __device__ int w2_row_of_expert() const {
    return loaded.tile * Config::kColumnTile + column_half(warp) * Config::kWeightTileRows;
  }
  // FP8: requests the weight tile's scales to L2 together with the tile. They are read a tile before they are needed,
  // and have to be in L2 by then: from memory they would take as long as weights, behind all weights in flight.
  __device__ void prefetch_scales(int expert, int n_block) const {
    if (loaded.gemm2) {
      prefetch_l2(args.w2_scales(expert, loaded.tile) + loaded.k);
    } else {
      const float* first = args.w1_scales(expert, n_block) + loaded.k;
      prefetch_l2(first), prefetch_l2(first + args.kSecondScales);
    }
  }
  // The weight tile's first row in all experts' W13 or W2.
  __device__ size_t first_row(int expert, int n_block) const {
    return loaded.gemm2 ? (size_t)expert * kHidden + w2_row_of_expert()
                        : (size_t)expert * 2 * kIntermediate + n_block * Config::kNBlockColumns;
  }
  // MXFP4: loads the weight tile's scales; a lane has those of two rows.
  __device__ void load_scales(int into, size_t first_row) {
    const int groups = (loaded.gemm2 ? kIntermediate : kHidden) / kGroupK;
    const uint8_t* from = (loaded.gemm2 ? args.w2_scale_bytes() : args.w1_scale_bytes()) + first_row * groups;
    from += loaded.k * (kBlockK / kGroupK);
#pragma unroll
    for (int row = lane; row < Config::kWeightTileRows; row += kWarp)
      cp_async_4(&s.weight_scales(warp, into)[row], from + source_row(loaded.gemm2, row) * groups);
  }
  // Loads the warp's next weight tile, if there is one, into a stage. read: depends on what the lane has read of the
  // stage, for the reason that barrier.cuh has under "release". cp.async does not need it, because it is a generic
  // access as the reads are.
  __device__ void load(int into, [[maybe_unused]] uint32_t read) {
    if (!loaded.done) loaded.advance(s.scheduler, warp);
    uint8_t* to = s.stages[warp][into];
    if (!loaded.done) {
      const MBlock& m_block = s.m_blocks[loaded.gemm2 ? loaded.m_block : loaded.tile / Config::kNumNBlocks];
      const int n_block = loaded.tile % Config::kNumNBlocks;  // gemm1
      if constexpr (Config::kShortTiles && !kMxfp4Weights) {
        if (lane == 0) prefetch_scales(m_block.expert, n_block);
      }
      if constexpr (kMxfp4Weights) load_scales(into, first_row(m_block.expert, n_block));
#if MMA_FUSED_TMA
      Barrier& full = s.full[warp][into];
      if (lane == 0) {
        fence_proxy_async_shared();  // TMA writes through the async proxy what was read by generic loads
        full.refill(Config::kWeightTileBytes, read);
        const int first_byte = loaded.k * Config::kTileRowBytes;
        if (loaded.gemm2)
          tma_load_2d(to, &maps.w2, full, first_byte, m_block.expert * kHidden + w2_row_of_expert(),
                      l2_evict_first());  // else W2 pushes h and the output sums out of L2
        else
          tma_load_5d(to, &maps.w1, full, first_byte, 0, 0, n_block * (Config::kNBlockColumns / 8),
                      m_block.expert, w1_policy);
      }
#else
      // Eight lanes copy a row of 128 bytes: a lane copies chunk lane % 8 of rows lane / 8, 4 + lane / 8, ... A row of
      // 64 bytes takes four lanes.
      constexpr int kChunks = Config::kTileRowBytes / 16, kRows = kWarp / kChunks;
      const int chunk = lane % kChunks, row_of_lane = lane / kChunks;
      const size_t pitch = (loaded.gemm2 ? kIntermediate : kHidden) / Config::kValuesPerByte;
      const size_t first = first_row(m_block.expert, n_block);
      const uint8_t* from = (loaded.gemm2 ? args.w2 : args.w1) + first * pitch;
      from += loaded.k * Config::kTileRowBytes + chunk * 16;
#pragma unroll
      for (int i = 0; i < Config::kWeightTileRows / kRows; i++) {
        const int row = kRows * i + row_of_lane;
        const size_t source = source_row(loaded.gemm2, row);
        cp_async_16(to + row * Config::kTileRowBytes + swizzled(chunk, row) * 16, from + source * pitch);
      }
#endif
    }
    if constexpr (kCpAsync) cp_async_commit();  // also without a weight tile: consumer_wait() counts groups
  }
};

}  // namespace mma_fused
