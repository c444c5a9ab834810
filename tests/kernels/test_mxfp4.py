"""MXFP4 weights in Triton: every byte at every scale, and the second GEMM against its plain
statement.
"""

import pytest
import torch
import triton
import triton.language as tl
from every_solution import each_device
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
    at = row * 64 + tl.arange(0, 64)[None, :]
    even, odd = weight_tile(w_ptr + at, scale_ptr + row + 0 * at)
    tl.store(even_ptr + at, even)
    tl.store(odd_ptr + at, odd)


def assert_close(output, expected):
    output = output.float()
    expected = expected.float()
    largest = float(expected.abs().max().clamp(min=1))
    assert torch.allclose(output, expected, rtol=2**-7, atol=2**-8 * largest)


@pytest.mark.parametrize("byte", [0, 1, 2, 63, 100, 126, 127, 128, 160, 200, 250, 252, 255])
def test_every_byte_is_exact_at_a_scale(device, byte):
    packed = torch.arange(256, dtype=torch.uint8, device=device).view(torch.int8).view(4, 64)
    scales = torch.full((4, 1), byte, dtype=torch.uint8, device=device).view(torch.int8)
    even = torch.empty(4, 64, dtype=torch.bfloat16, device=device)
    odd = torch.empty_like(even)

    dequantise_kernel[(1,)](packed, scales, even, odd)

    # a group of 16 bytes of one value has one scale
    groups = packed.repeat_interleave(16, 1)
    expected = dequantised_ref(groups, scales.expand(4, 64).contiguous())
    expected_even, expected_odd, *_ = expected.view(4, 64, 32).unbind(-1)
    assert_same_values(even, expected_even)
    assert_same_values(odd, expected_odd)


def assert_same_values(output, expected):
    """Check that values are equal, NaN where NaN."""
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=0, equal_nan=True)


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
    output = torch.empty(rows, 256, dtype=torch.bfloat16, device=device)

    gemm2_mxfp4(*operands, first_column, output, TILE)

    expected = gemm2_mxfp4_ref(*operands, TILE.block_m, first_column, 256)
    used = int(permutation.num_tiles) * TILE.block_m
    real = permutation.pair_of_row[:used] >= 0
    assert_close(output[:used][real], expected[:used][real])
