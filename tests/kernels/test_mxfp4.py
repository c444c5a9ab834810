"""MXFP4 weights in Triton: every byte at every scale, and the second GEMM against its plain
statement.
"""

import pytest
import torch
import triton
import triton.language as tl
from every_solution import each_device
from permuted_rows import rows_of_tokens
from random_values import Draw

from solutions.common.triton.gemms.tiles import Tile
from solutions.common.triton.mxfp4.gemm2_mxfp4 import gemm2_mxfp4, gemm2_mxfp4_ref
from solutions.common.triton.mxfp4.weights import dequantised_ref, weight_tile
from solutions.common.triton.rows.permute import permute_ref

pytestmark = [each_device, pytest.mark.usefixtures("poisoned_scratch")]

EXPERTS = 3
HIDDEN = 384
INTER = 256
TOP_K = 2
TILE = Tile(16, 128, 3, 1, 4, 3, programs=3)


@triton.jit
def dequantise_kernel(w_ptr, scale_ptr, even_ptr, odd_ptr):
    """Rows of 64 bytes, each with one scale."""
    row = tl.arange(0, 4)[:, None]
    column = tl.arange(0, 64)[None, :]
    at = row * 64 + column
    scale_at = row + 0 * column
    even, odd = weight_tile(w_ptr + at, scale_ptr + scale_at)
    tl.store(even_ptr + at, even)
    tl.store(odd_ptr + at, odd)


@pytest.mark.parametrize(
    "byte", [0, 1, 2, 63, 100, 126, 127, 128, 160, 200, 250, 252, 255]
)
def test_every_byte_is_exact_at_a_scale(device, byte):
    every_byte = torch.arange(256, dtype=torch.uint8, device=device)
    packed = every_byte.view(torch.int8).view(4, 64)
    scales = torch.full((4, 1), byte, dtype=torch.uint8, device=device)
    scales = scales.view(torch.int8)
    values = Draw(device).full_of_nan(2, 4, 64)

    dequantise_kernel[(1,)](packed, scales, *values)

    # a scale is that of 16 bytes, so each byte stands in a group of its own
    groups = packed.repeat_interleave(16, 1)
    scales_of_groups = scales.expand(4, 64).contiguous()
    expected = dequantised_ref(groups, scales_of_groups)
    first_of_group = expected.view(4, 64, 32)[..., :2]
    even_and_odd = first_of_group.permute(2, 0, 1)
    torch.testing.assert_close(
        values.float(), even_and_odd, rtol=0, atol=0, equal_nan=True
    )


def test_gemm2_of_a_column_slice(device):
    """As only large batches use it; tests/solutions/every/test_mxfp4.py has the rest."""
    first_column = 128
    draw = Draw(device)
    experts = draw.integers(-1, EXPERTS, 11, TOP_K)
    permutation = permute_ref(experts, EXPERTS, TILE.block_m)
    rows = len(permutation.pair_of_row)
    h = draw.fp8(rows, INTER)
    h_scale = draw.uniform(rows, INTER // 128)
    weights = draw.mxfp4_weights(EXPERTS, HIDDEN, INTER)
    scales = draw.integers(100, 127, EXPERTS, HIDDEN, INTER // 32, dtype=torch.int8)
    operands = (h, h_scale, weights, scales, permutation)
    output = draw.full_of_nan(rows, 256)

    gemm2_mxfp4(*operands, first_column, output, TILE)

    used = rows_of_tokens(permutation)
    expected = gemm2_mxfp4_ref(*operands, TILE.block_m, first_column, 256)
    expected = expected[used].float()
    largest = expected.abs().max().item()
    noise = 2**-8 * largest
    torch.testing.assert_close(output[used].float(), expected, rtol=2**-7, atol=noise)
