// A stand-in for the CUDA driver: launches on a stream that captures become a graph's nodes, others are written down. A
// CUfunction is a list of the sizes of its parameters in bytes, ended by zero; a tensor map's first word is its address.
#include <cuda.h>
#include <stdio.h>
#include <string.h>
#define FAKE(NAME, ARGUMENTS, EFFECT) CUresult NAME ARGUMENTS { EFFECT; return CUDA_SUCCESS; }

static struct Node { CUlaunchConfig of; CUfunction function; char bytes[9][128]; void* at[9]; } nodes[9];
static size_t count, length;
static char stream;
char told[1 << 14];

FAKE(cuCtxGetDevice, (CUdevice* device), *device = 0)
FAKE(cuStreamIsCapturing, (CUstream s, CUstreamCaptureStatus* is), *is = CU_STREAM_CAPTURE_STATUS_NONE)
FAKE(cuStreamCreate, (CUstream* s, unsigned flags), *s = (CUstream)&stream)
FAKE(cuStreamDestroy_v2, (CUstream s), )
FAKE(cuStreamBeginCapture_v2, (CUstream s, CUstreamCaptureMode mode), count = 0)
FAKE(cuStreamEndCapture, (CUstream s, CUgraph* graph), *graph = (CUgraph)nodes)
FAKE(cuGraphDestroy, (CUgraph graph), memset(nodes, 0xee, sizeof nodes))
FAKE(cuGraphGetRootNodes, (CUgraph g, CUgraphNode* root, size_t* n), (*root = (CUgraphNode)nodes, *n = 1))
FAKE(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType* type), *type = CU_GRAPH_NODE_TYPE_KERNEL)
FAKE(cuGraphNodeGetDependentNodes_v2, (CUgraphNode node, CUgraphNode* next, CUgraphEdgeData* edge, size_t* n),
     *n = (struct Node*)(*next = (CUgraphNode)((struct Node*)node + 1)) < nodes + count)
FAKE(cuGraphKernelNodeGetAttribute, (CUgraphNode node, CUkernelNodeAttrID id, CUkernelNodeAttrValue* value),
     value->clusterDim.x = 2)
FAKE(cuTensorMapReplaceAddress, (CUtensorMap* map, void* address), memcpy(map, &address, 8))
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* to) {
  struct Node* n = (struct Node*)node;
  *to = (CUDA_KERNEL_NODE_PARAMS){n->function, n->of.gridDimX, 1, 1, 32, 1, 1, 0, n->at};
  return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t* offset, size_t* size) {
  return (*size = ((const int*)f)[index]) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* of, CUfunction f, void** parameters, void** extra) {
  struct Node* n = of->hStream == (CUstream)&stream ? &nodes[count++] : NULL;
  if (n) n->of = *of, n->function = f;
  else length += sprintf(told + length, "\n%u %u", of->gridDimX, of->attrs[1].value.clusterDim.x);
  for (const int* bytes = (const int*)f; *bytes; bytes++, parameters++) {
    unsigned long long word[2] = {0};
    if (n) n->at[bytes - (const int*)f] = memcpy(n->bytes[bytes - (const int*)f], *parameters, *bytes);
    memcpy(word, *parameters, *bytes < 16 ? *bytes : 16);
    if (!n) length += sprintf(told + length, *bytes < 16 ? " %llu" : " %llu %llu", word[0], word[1]);
  }
  return CUDA_SUCCESS;
}
