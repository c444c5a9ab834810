// smem_addr: convert a pointer into shared memory to the 32-bit address that PTX instructions take.
#pragma once
#include <cstdint>

__device__ __forceinline__ uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
