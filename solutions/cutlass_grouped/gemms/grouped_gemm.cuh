// grouped_gemm: what a grouped FP8 GEMM is given and how it is launched; the same for every tile, architecture and
// definition. Sizes are arguments here, so that the files that instantiate CUTLASS do not depend on problem.cuh.
//
// A group is one local expert: result[rows, n] = activations[rows, k] . weights[n, k]^T, both FP8, with a scale for
// each row and 128 of k on the one side and for each 128 x 128 block on the other.
#pragma once
#include <cstdint>
#include <cuda_runtime.h>

// Arrays on the device with an element per group, written there by the permute stage; the host knows where they are
// and nothing of what they hold. The layouts are those that CUTLASS reads: a problem is three ints, a stride with one
// dynamic mode is one int64.
struct GroupTable {
  int groups;
  int (*problem)[3];  // rows, n, k; with a swap-AB tile: n, rows, k
  const void** activations;
  const void** weights;
  void** result;
  const float** row_scale;    // [k / 128][rows], or [rows][k / 128] if the GEMM says so
  const float** block_scale;  // [n / 128][k / 128]
  int64_t *activations_stride, *weights_stride, *result_stride;  // elements from row to row
};

// One compiled tile.
struct GroupedGemm {
  const char* name;
  bool swap_ab;        // wgmma's M is weight rows and N is token rows; else the other way round
  bool scales_by_row;  // row_scale is [rows][k / 128]
  size_t (*workspace_bytes)(int groups, int sms);
  // On the current device, after the kernel before it on the stream has ended.
  cudaError_t (*launch)(const GroupTable& table, void* workspace, int device, int sms, cudaStream_t stream);
};

// The GEMMs of this build, `count` of them; alike in scales_by_row.
const GroupedGemm* const* tiles(int* count);

// Programmatic dependent launch. Each kernel lets the next one start as soon as it runs itself, and waits for the end
// of the one before it, with all that this one waited for, before it touches memory.
inline cudaLaunchAttribute pdl_attribute() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}
