"""source: what MXFP4 weights with FP8 activations need of FlashInfer's sources."""

from ..flashinfer_mxfp4.kernels import COOPERATIVE, PINGPONG, PREFILL, ROLLING, Kernel

RUNNER = "moe_gemm_kernels_fp8_fp4.cu"
ACTIVATIONS = "__nv_fp8_e4m3"
SCALES = "kPreMmaE8M0"
SINGLE_TOKENS = (8, 16, 32, 40, 64)  # what the tuner tries beside its list, whatever that has
KERNELS = [
    Kernel((64, 16, 256), PINGPONG),
    Kernel((128, 16, 256), COOPERATIVE),
    Kernel((128, 64, 256), COOPERATIVE),  # asked for the size of the scratch, too
    Kernel((128, 128, 128), COOPERATIVE),
    *(Kernel((128, tokens, 128), PREFILL) for tokens in SINGLE_TOKENS),
    *(Kernel((128, tokens, 128), ROLLING) for tokens in SINGLE_TOKENS),
]
