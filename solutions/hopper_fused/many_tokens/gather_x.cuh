// gather_x: how the producers of a gemm1 copy a tile's rows of x to shared memory, swizzled on the way. Each of them
// copies one 16-byte vector of every kRowsAtOnce-th row, whose tokens it looks up once for each tile.
#pragma once
#include <cstdint>

#include "common/cuda/ptx/cp_async.cuh"
#include "common/cuda/ptx/wgmma.cuh"
#include "hopper_fused/many_tokens/grouped_config.cuh"
#include "hopper_fused/many_tokens/grouped_layer.cuh"
#include "hopper_fused/many_tokens/tile_scheduler.cuh"
#include "hopper_fused/sizes.cuh"

namespace hopper_fused {

constexpr int kVectorsPerRow = kBlockK / 16;                    // 16-byte vectors of a row's K block
constexpr int kRowsAtOnce = kProducerThreads / kVectorsPerRow;  // rows that the producers copy at a time
constexpr int kRowsPerThread = Grouped::kBlockM / kRowsAtOnce;
constexpr unsigned kNoRow = 0xffffffff;  // an offset where nothing is read
static_assert(Grouped::kRowAlign % kRowsAtOnce == 0, "all producers copy a row of the tile, or none");

// The offsets in x of the rows that a thread copies. An expert's rows are in order of token, so in any but the first row
// token 0 means padding. Then nothing is copied: what lies there is multiplied into that row's results alone.
// row, vector: the thread's first row, and its vector.
__device__ __forceinline__ void find_rows_of_x(unsigned (&x_offset)[kRowsPerThread], const GroupedArgs& args,
                                               const WorkTile& tile, int row, int vector) {
#pragma unroll
  for (int i = 0; i < kRowsPerThread; i++) {
    const int r = tile.m_first + i * kRowsAtOnce + row;
    const unsigned token = i * kRowsAtOnce < tile.m_rows ? args.row_token[tile.expert_first + r] : 0;
    x_offset[i] = token > 0 || r == 0 ? token * kHidden + vector * 16 : kNoRow;
  }
}

// Copies their K block. x: of the K block. smem_a: the place of the thread's vector in its first row.
__device__ __forceinline__ void cp_async_rows_of_x(uint8_t* smem_a, const uint8_t* x,
                                                   const unsigned (&x_offset)[kRowsPerThread]) {
#pragma unroll
  for (int i = 0; i < kRowsPerThread; i++)
    if (x_offset[i] != kNoRow) cp_async_16(smem_a + i * kRowsAtOnce * kBlockK, x + x_offset[i]);
}

}  // namespace hopper_fused
