// k_order: the order of K that MXFP4 weights want of x and h. Of a row's K block a lane of the consumers has 16 bytes of
// weights, 32 values with one scale, and gives eight of them to each of four wgmmas: four to either half of its K.
// So words of four values are transposed: word 8 q + c of 32 comes to place 4 c + q.
#pragma once
#include <cstdint>

#include <cuda_runtime.h>

namespace hopper_fused {

// Where value k of a K block lies.
__host__ __device__ __forceinline__ int k_position(int k) { return k / 4 % 8 * 16 + k / 32 * 4 + k % 4; }

}  // namespace hopper_fused
