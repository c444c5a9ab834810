"""source: which kernels of FlashInfer's are compiled for MXFP4 weights with FP8 activations.

It takes the place of flashinfer_mxfp4's file, and its build.py reads it. RUNNER: FlashInfer's file
that launches the kernels. ACTIVATIONS: C++ type of the activations. SCALES: CUTLASS's mode of
applying the weights' scales. KERNELS: those to compile, by tile (rows of the weights, tokens, K)
and schedule.
"""

from ..flashinfer_mxfp4.kernels import COOPERATIVE, PINGPONG, PREFILL, ROLLING, Kernel

RUNNER = "moe_gemm_kernels_fp8_fp4.cu"
ACTIVATIONS = "__nv_fp8_e4m3"
SCALES = "kPreMmaE8M0"
# Tokens of a tile in the kernels of a single warpgroup, PREFILL and ROLLING. FlashInfer's tuner
# tries all of these, though its list of candidates does not have them.
SINGLE_TOKENS = (8, 16, 32, 40, 64)
KERNELS = [
    Kernel((64, 16, 256), PINGPONG),
    Kernel((128, 16, 256), COOPERATIVE),
    Kernel(
        (128, 64, 256), COOPERATIVE
    ),  # FlashInfer asks this one how much scratch is needed
    Kernel((128, 128, 128), COOPERATIVE),
    *(Kernel((128, tokens, 128), PREFILL) for tokens in SINGLE_TOKENS),
    *(Kernel((128, tokens, 128), ROLLING) for tokens in SINGLE_TOKENS),
]
