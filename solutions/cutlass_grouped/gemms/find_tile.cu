// find_tile: the function by which Python looks up a compiled tile by name. It is in the library of the GEMMs
// (build.py), in which nothing depends on the definition.
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <string>

#include "cutlass_grouped/gemms/grouped_gemm.cuh"

// Returns the address of the tile's GroupedGemm, which run_layer takes. Raises ValueError for an unknown name.
static int64_t find_tile(tvm::ffi::String name) {
  int count;
  const GroupedGemm* const* all = tiles(&count);
  const std::string wanted = name;
  const auto found = std::find_if(all, all + count, [&](auto* tile) { return wanted == tile->name; });
  if (found == all + count) TVM_FFI_THROW(ValueError) << "cutlass_grouped: there is no tile " << wanted;
  return reinterpret_cast<int64_t>(*found);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(find_tile, find_tile);
