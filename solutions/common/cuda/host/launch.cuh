// launch: launches kernels that call pdl_wait(), by programmatic dependent launch.
//
// The preceding kernel may be another library's. After pdl_wait() its results are complete, and those of all kernels
// before it, as long as it waits for its own predecessor before it ends. A kernel that is launched in the ordinary way
// always does.
#pragma once
#include <cuda_runtime.h>

// also: one more launch attribute, cooperative() or clusters_of().
template <class... Parameters>
cudaError_t launch_with_pdl(void (*kernel)(Parameters...), int ctas, int threads, cudaLaunchAttribute also,
                            int smem_bytes, cudaStream_t stream, const Parameters&... parameters) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1] = also;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, parameters...);
}

// The attribute by which either all CTAs are resident or none runs.
inline cudaLaunchAttribute cooperative() {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return attribute;
}
// The attribute that makes clusters of so many CTAs.
inline cudaLaunchAttribute clusters_of(unsigned ctas) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {ctas, 1, 1};
  return attribute;
}
