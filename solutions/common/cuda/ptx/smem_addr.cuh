// smem_addr: an address in shared memory as PTX takes it, 32 bits.
#pragma once
#include <cstdint>

__device__ __forceinline__ uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
