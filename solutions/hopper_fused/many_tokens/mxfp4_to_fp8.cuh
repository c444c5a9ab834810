// mxfp4_to_fp8: MXFP4 weights as FP8 with a scale for each 128 x 128, for the kernels for many tokens.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// The weights of an expert's matrix of rows x K, of all experts: rows are those of all of them.
struct Mxfp4Matrix {
  const uint8_t* packed;  // [rows, K / 2]: E2M1
  const uint8_t* scales;  // [rows, K / 32]: E8M0
  uint8_t* fp8;           // [rows, K], written
  float* fp8_scales;      // [rows / 128, K / 128], written
  int rows, k;            // multiples of 128
};

// The values are the same, or *out_of_range is set: where the scales of a block are further apart than 2^14, or one is
// not a number. Groups of zeros count as having no scale. *out_of_range is zero before.
cudaError_t launch_mxfp4_to_fp8(const Mxfp4Matrix& matrix, unsigned* out_of_range, int sms, cudaStream_t stream);
