// many_combine: out[token] = the sum of the token's rows of y, in order of expert. A block a token; many_gemm2 has
// cleared tokens without rows.
#include "y_store.cuh"

// A row is two or four vectors of eight columns for each thread, or three.
constexpr int kVectors = kHidden / 8;
constexpr int kCombineThreads = kVectors % 896 == 0 ? 224 : kVectors % 512 == 0 ? 256 : kVectors % 384 == 0 ? 192 : 128;
constexpr bool kManyRows = kTopK * kLocal > 3 * kExperts;  // of a token here, mostly
constexpr int kCombineBlocks = (kManyRows ? 1024 : 1792) / kCombineThreads;  // of a multiprocessor at once
constexpr int kCombineWaves = 4;      // so many times those in all: where one ends early, another begins

__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks) many_combine(const __grid_constant__ ManyArgs args) {
  constexpr int kAtOnce = kManyRows ? 4 : 2;  // most tokens have no more rows here
  constexpr int kQuads = kMaxTokenRows / 4;
  pdl_wait();
  pdl_launch_dependents();
  const int4* rows_of = reinterpret_cast<const int4*>(args.token_rows);
  int4 coming[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; i++)
    coming[i] = blockIdx.x < args.num_tokens ? __ldg(rows_of + kQuads * blockIdx.x + i) : make_int4(-1, -1, -1, -1);
  for (int t = blockIdx.x; t < args.num_tokens; t += gridDim.x) {
    int row[kMaxTokenRows];
#pragma unroll
    for (int i = 0; i < kQuads; i++)
      row[4 * i] = coming[i].x, row[4 * i + 1] = coming[i].y, row[4 * i + 2] = coming[i].z, row[4 * i + 3] = coming[i].w;
    const int next = t + gridDim.x;
    if (next < args.num_tokens) {
#pragma unroll
      for (int i = 0; i < kQuads; i++) coming[i] = __ldg(rows_of + kQuads * next + i);
    }
    if (row[0] < 0) continue;
    for (int column = threadIdx.x * 8; column < args.y_columns; column += kCombineThreads * 8) {
      float sum[8] = {};
#pragma unroll
      for (int i = 0; i < kMaxTokenRows; i += kAtOnce) {
        if (row[i] < 0) break;
        uint4 v[kAtOnce];
#pragma unroll
        for (int r = 0; r < kAtOnce; r++)
          v[r] = row[i + r] < 0
                     ? make_uint4(0, 0, 0, 0)
                     : __ldcs(reinterpret_cast<const uint4*>(args.y + (size_t)row[i + r] * args.y_columns + column));
#pragma unroll
        for (int r = 0; r < kAtOnce; r++) {
          const unsigned pairs[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
#pragma unroll
          for (int p = 0; p < 4; p++) {
            sum[2 * p] += __uint_as_float(pairs[p] << 16);
            sum[2 * p + 1] += __uint_as_float(pairs[p] & 0xffff0000u);
          }
        }
      }
      __stcs(reinterpret_cast<uint4*>(args.output + (size_t)t * kHidden + args.first_column + column),
             make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                        pack_bf16(sum[6], sum[7])));
    }
  }
}

cudaError_t launch_many_combine(const ManyArgs& args, int blocks, cudaStream_t stream) {
  const int at_most = kCombineWaves * kCombineBlocks * blocks;
  return launch_with_pdl(many_combine, min(args.num_tokens, at_most), kCombineThreads, 1, 0, stream, args);
}
