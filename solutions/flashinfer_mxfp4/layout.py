"""layout: what FlashInfer's Hopper kernels for 4-bit weights want of them, whatever the
activations.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Prepared:
    """Weights of a rank's experts. quant_scales: as cutlass_fused_moe takes them."""

    gemm1: torch.Tensor
    gemm2: torch.Tensor
    quant_scales: list


def up_first(rows):
    """Return [E, 2 I, ...] with its halves of rows exchanged: `gate` is first here, `up` there."""
    gate, up = rows.chunk(2, dim=1)
    return torch.cat([up, gate], dim=1)


def as_bytes(weights):
    """Return the layer's weights and scales as uint8, gemm1's with `up` first.

    weights: (gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale), int8, as in
    the definition.
    """
    gemm1, gemm1_scale, gemm2, gemm2_scale = (tensor.view(torch.uint8) for tensor in weights)
    return up_first(gemm1), up_first(gemm1_scale), gemm2, gemm2_scale
