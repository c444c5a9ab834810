"""layout: those parts of preparing MXFP4 weights that are the same for any activations.

prepare.py of flashinfer_mxfp4 and of flashinfer_mxfp4_w4a8 use it.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Prepared:
    """Weights of a rank's experts, in the byte order of FlashInfer's kernels.

    quant_scales: the list that cutlass_fused_moe takes under this name.
    """

    gemm1: torch.Tensor
    gemm2: torch.Tensor
    quant_scales: list


def up_first(rows):
    """Return rows [E, 2 I, ...] with `up` first, as FlashInfer has them; they come `gate` first."""
    gate, up = rows.chunk(2, dim=1)
    return torch.cat([up, gate], dim=1)


def as_bytes(weights):
    """Return the layer's weights and scales as uint8, gemm1's with `up` first.

    weights: (gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale), int8, as in
    the definition.
    """
    gemm1, gemm1_scale, gemm2, gemm2_scale = (
        tensor.view(torch.uint8) for tensor in weights
    )
    return up_first(gemm1), up_first(gemm1_scale), gemm2, gemm2_scale
