// add_rows: output[token] = the sum of the token's rows of y, in the order of the caller's ids. A thread adds up 8
// columns of a token. It follows the one launch where that has not added them up itself (kMostSumTokens, config.cuh).
#include "hopper_fused/few_tokens/mxfp4/add_rows.cuh"

#include "common/cuda/host/launch.cuh"
#include "common/cuda/layer/layer_sizes.cuh"
#include "common/cuda/numerics.cuh"
#include "common/cuda/ptx/pdl.cuh"

namespace hopper_fused {

constexpr int kAddThreads = 256, kAddCtas = 8;  // threads of a CTA, CTAs of an SM

__global__ void __launch_bounds__(kAddThreads) add_rows(const FusedArgs args) {
  pdl_wait();
  pdl_launch_dependents();
  constexpr int kOctets = kHidden / 8;
  for (int i = blockIdx.x * kAddThreads + threadIdx.x; i < args.num_tokens * kOctets; i += gridDim.x * kAddThreads) {
    const int t = i / kOctets, column = i % kOctets * 8;
    float4 u[kTopK], v[kTopK];
#pragma unroll
    for (int k = 0; k < kTopK; k++) {
      const int row = args.token_rows[t * kTopK + k];
      const auto* from = reinterpret_cast<const float4*>(args.y + (size_t)max(row, 0) * kHidden + column);
      u[k] = row < 0 ? make_float4(0, 0, 0, 0) : __ldcs(from);
      v[k] = row < 0 ? make_float4(0, 0, 0, 0) : __ldcs(from + 1);
    }
#pragma unroll
    for (int k = 1; k < kTopK; k++) {
      u[0].x += u[k].x, u[0].y += u[k].y, u[0].z += u[k].z, u[0].w += u[k].w;
      v[0].x += v[k].x, v[0].y += v[k].y, v[0].z += v[k].z, v[0].w += v[k].w;
    }
    *reinterpret_cast<uint4*>(args.output + (size_t)t * kHidden + column) =
        make_uint4(pack_bf16(u[0].x, u[0].y), pack_bf16(u[0].z, u[0].w), pack_bf16(v[0].x, v[0].y),
                   pack_bf16(v[0].z, v[0].w));
  }
}

cudaError_t launch_add_rows(const FusedArgs& args, int sms, cudaStream_t stream) {
  return launch_with_pdl(add_rows, kAddCtas * sms, kAddThreads, clusters_of(1), 0, stream, args);
}

}  // namespace hopper_fused
