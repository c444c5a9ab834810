// grouped_gemm: what a grouped FP8 product is given and how it is launched; the same for every tile and architecture.
//
// A group is one local expert: result[rows, n] = activations[rows, k] . weights[n, k]^T, both FP8, with a scale for
// each row and 128 of k on the one side and for each 128 x 128 block on the other.
#pragma once
#include <cstdint>
#include <cuda_runtime.h>

constexpr int kGroups = 32;  // local experts

// Written on the device by the permute stage; the host knows addresses only. The layouts are those that CUTLASS reads:
// a problem is three ints, a stride with one dynamic mode is one int64.
struct GroupTable {
  int problem[kGroups][3];  // rows, n, k; where weights are the first operand: n, rows, k
  const void* activations[kGroups];
  const void* weights[kGroups];
  void* result[kGroups];
  const float* row_scale[kGroups];    // [k / 128][rows], or [rows][k / 128] if the product says so
  const float* block_scale[kGroups];  // [n / 128][k / 128]
  int64_t activations_stride[kGroups], weights_stride[kGroups], result_stride[kGroups];  // elements from row to row
};

// One compiled tile.
struct GroupedGemm {
  const char* name;
  bool weights_first;  // weights are the operand whose tile is 128 wide, activations the one whose tile is narrow
  bool scales_by_row;  // row_scale is [rows][k / 128]
  size_t (*workspace_bytes)(int multiprocessors);
  // On the device of the stream, after the kernel before it on the stream has ended.
  cudaError_t (*launch)(const GroupTable* table, void* workspace, int device, int multiprocessors, cudaStream_t stream);
};

// The products of this build, `count` of them; alike in scales_by_row.
const GroupedGemm* const* tiles(int* count);

// Kernels of a call overlap at their ends: each lets the next one start as soon as it runs itself, and waits for the
// end of the one before it, with all that this one waited for, before it touches memory.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Attribute of the launch of such a kernel.
inline cudaLaunchAttribute overlapped_launch() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}
