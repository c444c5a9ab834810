"""prepare: convert MXFP4 weights to the order in which FlashInfer's FP8 x FP4 kernels read them.

It takes the place of flashinfer_mxfp4's file. FlashInfer's function for these kernels also takes
the common factor out of an expert's scales. It needs several times a matrix's memory, so it is
called for one expert at a time.
"""

import torch
from flashinfer import fused_moe

from ..flashinfer_mxfp4.layout import Prepared, as_bytes

# arguments of cutlass_fused_moe that choose these kernels
FLAGS = {"use_w4_group_scaling": True, "use_wfp4afp8_humming": True}
# FlashInfer's documentation says to multiply an expert's factor with it
COMPENSATION = 2.0**6


def prepare(weights):
    """Return the weights of all of the rank's experts as a `Prepared`.

    Args:
        weights: as in layout.as_bytes.

    Raises:
        ValueError: FlashInfer refuses the shapes.
    """
    gemm1, gemm1_scale, gemm2, gemm2_scale = as_bytes(weights)
    first, first_scale, first_factor = prepared_matrix(gemm1, gemm1_scale)
    second, second_scale, second_factor = prepared_matrix(gemm2, gemm2_scale)

    reserved = torch.ones((), dtype=torch.float32, device=first.device)
    scales = [first_scale, first_factor, reserved, second_scale, second_factor]
    return Prepared(first, second, scales)


def prepared_matrix(packed, scales):
    """Return one GEMM's weights, its folded scales as int32, and a factor [E] for each expert.

    packed: [E, N, K / 2] uint8; scales: [E, N, K / 32] uint8.
    """
    preprocess = fused_moe.preprocess_moe_weights_for_sm90_mixed_gemm_humming
    weights = []
    folded = []
    factors = []
    for expert, expert_scales in zip(packed.split(1), scales.split(1), strict=True):
        expert_weights, expert_folded, factor = preprocess(expert, expert_scales)
        weights.append(expert_weights)
        folded.append(expert_folded)
        factors.append(factor)
    factor_of_expert = torch.cat(factors) * COMPENSATION
    return torch.cat(weights), torch.cat(folded).view(torch.int32), factor_of_expert
