"""MXFP4 weights in Triton: every byte at every scale, and both GEMMs against plain statements."""

import pytest
import torch
import triton
import triton.language as tl
from every_solution import each_device

from solutions.common.triton.gemms.tiles import Tile
from solutions.common.triton.mxfp4.gemm1_mxfp4 import gemm1_mxfp4, gemm1_mxfp4_ref
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


def random_bytes(device, *shape, low=-128, high=128):
    return torch.randint(low, high, shape, dtype=torch.int16).to(torch.int8).to(device)


def random_weights(device, columns, depth):
    """Return packed weights [E, columns, depth / 2] and their scales, a byte a group of 32."""
    weights = random_bytes(device, EXPERTS, columns, depth // 2)
    return weights, random_bytes(device, EXPERTS, columns, depth // 32, low=100, high=127)


def random_fp8(device, *shape):
    return torch.randn(shape).to(torch.float8_e4m3fn).to(device)


def random_permutation(device, num_tokens):
    experts = torch.randint(-1, EXPERTS, (num_tokens, TOP_K), dtype=torch.int32, device=device)
    return permute_ref(experts, EXPERTS, TILE.block_m)


def assert_close(output, expected):
    output = output.float()
    expected = expected.float()
    largest = float(expected.abs().max().clamp(min=1))
    assert torch.allclose(output, expected, rtol=2**-7, atol=2**-8 * largest)


@pytest.mark.parametrize("byte", [0, 1, 2, 63, 100, 126, 127, 128, 160, 200, 250, 252, 255])
def test_every_byte_is_exact_at_a_scale(device, byte):
    packed = torch.arange(256).to(torch.uint8).view(torch.int8).view(4, 64).to(device)
    scales = torch.full((4, 1), byte, dtype=torch.uint8, device=device).view(torch.int8)
    even = torch.empty(4, 64, dtype=torch.bfloat16, device=device)
    odd = torch.empty_like(even)

    dequantise_kernel[(1,)](packed, scales, even, odd)

    # a group of 16 bytes of one value has one scale
    wide = packed.repeat_interleave(16, 1)
    expected = dequantised_ref(wide, scales.expand(4, 64).contiguous()).view(4, 64, 32)
    expected = expected[..., :2].nan_to_num(1e38)
    assert torch.equal(torch.stack([even, odd], -1).float().nan_to_num(1e38), expected)


@pytest.mark.parametrize("num_tokens", [1, 19])
def test_gemm1(device, num_tokens):
    torch.manual_seed(num_tokens)
    permutation = random_permutation(device, num_tokens)
    x = random_fp8(device, num_tokens, HIDDEN)
    x_scale = torch.rand(num_tokens, HIDDEN // 128, device=device)
    operands = (x, x_scale, *random_weights(device, 2 * INTER, HIDDEN), permutation)

    output = gemm1_mxfp4(*operands, TILE)

    rows = int(permutation.num_tiles) * TILE.block_m
    assert_close(output[:rows], gemm1_mxfp4_ref(*operands, TILE.block_m)[:rows])


@pytest.mark.parametrize("first_column", [0, 128])
def test_gemm2(device, first_column):
    torch.manual_seed(first_column)
    permutation = random_permutation(device, 11)
    rows = len(permutation.pair_of_row)
    h = random_fp8(device, rows, INTER)
    h_scale = torch.rand(rows, INTER // 128, device=device)
    operands = (h, h_scale, *random_weights(device, HIDDEN, INTER), permutation)
    output = torch.empty(rows, 256, dtype=torch.bfloat16, device=device)

    gemm2_mxfp4(*operands, first_column, output, TILE)

    expected = gemm2_mxfp4_ref(*operands, TILE.block_m, first_column, 256)
    used = int(permutation.num_tiles) * TILE.block_m
    real = permutation.pair_of_row[:used] >= 0
    assert_close(output[:used][real], expected[:used][real])
