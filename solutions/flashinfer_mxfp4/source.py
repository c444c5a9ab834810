"""source: which kernels of FlashInfer's are compiled for MXFP4 weights with bf16 activations.

build.py reads RUNNER, the file of FlashInfer's that launches them, and what kernels.py writes
sources from: ACTIVATIONS, their C++ type, SCALES, the mode in which the weights' scales are applied
("" for the usual one), and KERNELS. A tile is (rows of the weights, tokens, K).

With up to hundreds of tokens in a call an expert has few, for which tiles 16 tokens wide are
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
    Kernel((128, 64, 256), COOPERATIVE),  # FlashInfer asks this one how much scratch is needed
    Kernel((128, 128, 128), COOPERATIVE),
]
