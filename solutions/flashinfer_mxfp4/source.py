"""source: which kernels of FlashInfer's are compiled for MXFP4 weights with bf16 activations.

build.py reads it. RUNNER: FlashInfer's file that launches the kernels. ACTIVATIONS: C++ type of the
activations. SCALES: CUTLASS's mode of applying the weights' scales, "" for the default. KERNELS:
those to compile, by tile (rows of the weights, tokens, K) and schedule.

In a call with up to hundreds of tokens an expert has few, for which tiles 16 tokens wide are
enough; wider ones are for thousands.
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
    Kernel(
        (128, 64, 256), COOPERATIVE
    ),  # FlashInfer asks this one how much scratch is needed
    Kernel((128, 128, 128), COOPERATIVE),
]
