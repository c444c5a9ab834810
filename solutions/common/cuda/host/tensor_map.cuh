// tensor_map: TMA descriptors, encoded on the host by the driver, which nothing is linked with.
#pragma once
#include <cuda.h>

#include "common/cuda/host/check_cuda.cuh"

// 8-bit elements; boxes are 128 bytes wide, swizzled, or narrower and swizzled as narrow_swizzle says. size, stride
// (bytes) and box are those of the fastest dimension first; its stride is not read. l2_promotion: bytes that L2
// requests from memory; the faster value is measured.
template <int RANK>
static void encode_tensor_map(CUtensorMap* map, const void* base, const cuuint64_t (&size)[RANK],
                              const cuuint64_t (&stride)[RANK], const cuuint32_t (&box)[RANK],
                              CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                              CUtensorMapSwizzle narrow_swizzle = CU_TENSOR_MAP_SWIZZLE_NONE) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
               "looking up cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess || entry == nullptr)
      TVM_FFI_THROW(RuntimeError) << kSolutionName << ": the driver has no cuTensorMapEncodeTiled";
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  cuuint32_t ones[RANK];
  for (auto& one : ones) one = 1;
  const CUtensorMapSwizzle swizzle = box[0] == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : narrow_swizzle;
  const CUresult e = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, RANK, const_cast<void*>(base), size, stride + 1, box,
                            ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, l2_promotion,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS)
    TVM_FFI_THROW(RuntimeError) << kSolutionName << ": cuTensorMapEncodeTiled failed with " << (int)e;
}
