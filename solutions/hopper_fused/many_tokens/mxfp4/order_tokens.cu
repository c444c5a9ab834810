// order_tokens: copies x in the order of K that the MXFP4 GEMMs read (k_order.cuh). A thread has 16 bytes of the
// result, four words that were 32 bytes apart; eight threads have a K block.
//
// It runs beside route_permute, whose results it does not need: route_permute lets it start when all kernels before are
// over. It ends only when route_permute has, so that gemm1, which waits for this kernel, has the results of both.
#include "hopper_fused/many_tokens/mxfp4/order_tokens.cuh"

#include "common/cuda/host/launch.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/ptx/pdl.cuh"

namespace hopper_fused {

constexpr int kOrderThreads = 256;
constexpr int kPieces = kBlockK / 16;  // 16-byte pieces of a K block

__global__ void __launch_bounds__(kOrderThreads)
    order_tokens(const uint32_t* x, uint4* ordered, size_t pieces) {
  pdl_launch_dependents();
  const size_t piece = (size_t)blockIdx.x * kOrderThreads + threadIdx.x;
  if (piece < pieces) {
    const uint32_t* words = x + piece / kPieces * (kBlockK / 4) + piece % kPieces;
    // Read from L2 (__ldcg): L1 may hold old values before this kernel's pdl_wait().
    ordered[piece] = make_uint4(__ldcg(words), __ldcg(words + 8), __ldcg(words + 16), __ldcg(words + 24));
  }
  pdl_wait();
}

cudaError_t launch_order_tokens(const uint8_t* x, uint8_t* ordered, int num_tokens, cudaStream_t stream) {
  const size_t pieces = (size_t)num_tokens * kHidden / 16;
  return launch_with_pdl(order_tokens, (int)((pieces + kOrderThreads - 1) / kOrderThreads), kOrderThreads,
                         clusters_of(1), 0, stream, reinterpret_cast<const uint32_t*>(x),
                         reinterpret_cast<uint4*>(ordered), pieces);
}

}  // namespace hopper_fused
