"""prepare: convert MXFP4 weights to the order in which FlashInfer's bf16 x FP4 kernels read them.

main.py calls it in each call; a server does so once, after loading. FlashInfer's own functions
interleave bytes and fold scales.
"""

import torch
from flashinfer import fused_moe

from .layout import Prepared, as_bytes

# arguments of cutlass_fused_moe that choose these kernels
FLAGS = {"use_w4_group_scaling": True}


def prepare(weights):
    """Return the weights of all of the rank's experts as a `Prepared`.

    Args:
        weights: as in layout.as_bytes.

    Raises:
        ValueError: FlashInfer refuses the shapes.
    """
    gemm1, gemm1_scale, gemm2, gemm2_scale = as_bytes(weights)
    interleave = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm
    fold = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm
    return Prepared(
        interleave(gemm1, "fp4"),
        interleave(gemm2, "fp4"),
        [fold(gemm1_scale).view(torch.int32), fold(gemm2_scale).view(torch.int32)],
    )
