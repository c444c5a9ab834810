"""source: what MXFP4 weights with bf16 activations need of FlashInfer's sources.

Narrow tiles for the few rows that an expert has up to hundreds of tokens, wide ones for thousands.
"""

from .kernels import COOPERATIVE, PINGPONG, Kernel

RUNNER = "moe_gemm_kernels_bf16_fp4.cu"
ACTIVATIONS = "__nv_bfloat16"
SCALES = ""
KERNELS = [
    Kernel((64, 16, 128), PINGPONG),
    Kernel((64, 16, 256), PINGPONG),
    Kernel((64, 16, 512), PINGPONG),
    Kernel((128, 16, 128), COOPERATIVE),
    Kernel((128, 16, 256), COOPERATIVE),
    Kernel((128, 16, 512), COOPERATIVE),
    Kernel((128, 32, 256), COOPERATIVE),
    Kernel((128, 64, 256), COOPERATIVE),  # asked for the size of the scratch, too
    Kernel((128, 128, 128), COOPERATIVE),
]
