"""MXFP4 weights in the order of Marlin's kernels.

A warp multiplies tiles of 16 along K by 64 rows of the weights. Each of its threads reads its 32
codes of a tile as four words of eight, so that one load brings what its mma instructions take: an
instruction's operand has 8 rows by 16 of K, and a thread holds one row's two neighbours of K, and
the two that are 8 further.
"""

from dataclasses import dataclass

import torch

TILE_K = 16
TILE_ROWS = 64
# Axes of [tiles of rows, instruction pair, instruction, row, tiles of K, far, pair of K, parity] in
# the order of the words. Within a word the even columns come first, which Marlin unpacks together.
WORDS = (4, 0, 3, 6, 1, 7, 2, 5)


@dataclass(frozen=True)
class MarlinWeights:
    """A rank's experts in Marlin's order. Packed codes are int32, scales float8_e8m0fnu."""

    gemm1: torch.Tensor  # [E, H / 16, 4 I]
    gemm1_scale: torch.Tensor  # [E, H / 32, 2 I]
    gemm2: torch.Tensor  # [E, I / 16, 2 H]
    gemm2_scale: torch.Tensor  # [E, I / 32, H]


def marlin_weights(weights: list[torch.Tensor]) -> MarlinWeights:
    """Return the weights of all of the rank's experts in Marlin's order.

    weights: gemm1's codes, its scales, gemm2's codes, its scales, as the definition has them.
    """
    gemm1, gemm1_scale, gemm2, gemm2_scale = (
        tensor.view(torch.uint8) for tensor in weights
    )
    return MarlinWeights(
        torch.stack([repack(expert) for expert in gemm1]),
        torch.stack([permute_scales(expert) for expert in gemm1_scale]),
        torch.stack([repack(expert) for expert in gemm2]),
        torch.stack([permute_scales(expert) for expert in gemm2_scale]),
    )


def repack(packed: torch.Tensor) -> torch.Tensor:
    """Return an expert's codes as [K / 16, 2 N] int32, eight to a word.

    packed: [N, K / 2] uint8, the first of two codes along K in the low half. N is a multiple of 64,
    K of 16.
    """
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    rows, k = codes.shape
    row_fields = (rows // TILE_ROWS, 4, 2, 8)
    k_fields = (k // TILE_K, 2, 4, 2)
    fields = codes.view(*row_fields, *k_fields)

    pairs = fields.permute(WORDS).reshape(k // TILE_K, -1, 2)
    low, high = pairs.unbind(-1)
    return (low | high << 4).view(torch.int32)


def permute_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return an expert's scales as [K / 32, N] float8_e8m0fnu.

    A thread reads the eight scales of its rows in a tile together, and takes them two by two: the
    first with the third. scales: [N, K / 32] uint8, N a multiple of 64.
    """
    rows, groups = scales.shape
    fields = scales.t().reshape(groups, rows // TILE_ROWS, 2, 2, 2, 8)
    ordered = fields.permute(0, 1, 5, 2, 4, 3).reshape(groups, rows)
    return ordered.contiguous().view(torch.float8_e8m0fnu)
