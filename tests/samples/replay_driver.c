// A stand-in for the CUDA driver that writes down what replay.cpp asks of it. A CUfunction is a list of the sizes of its
// parameters in bytes, ended by zero; a tensor map's words are its address, then what it was encoded from.
#include <cuda.h>
#include <stdio.h>
#include <string.h>

static char told[1 << 16], handed_out[1 << 16];
static size_t length;

// Since it was last asked for.
const char* what_was_told(void) {
  memcpy(handed_out, told, length + 1);
  told[length = 0] = 0;
  return handed_out;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank != 2 || (size_t)address % 16 || step[0] != 1 || step[1] != 1) return CUDA_ERROR_INVALID_VALUE;
  const cuuint64_t words[] = {0, type, swizzle, fill, size[0], size[1], stride[0], box[0], box[1]};
  memset(map, 0, sizeof *map);
  memcpy(map, words, sizeof words);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  length += sprintf(told + length, "launch %u %u %u of %u with %u:", config->gridDimX, config->gridDimY, config->gridDimZ,
                    config->blockDimX, config->sharedMemBytes);
  for (const int* bytes = (const int*)function; *bytes; bytes++, parameters++) {
    unsigned long long words[16] = {0};
    memcpy(words, *parameters, *bytes);
    for (int i = 0; i < (*bytes > 8 ? 9 : 1); i++) length += sprintf(told + length, " %llu", words[i]);
  }
  length += sprintf(told + length, "\n");
  return CUDA_SUCCESS;
}
