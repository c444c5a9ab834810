"""MXFP4 weights in Triton: every byte at every scale, and both GEMMs against plain statements."""

import pytest
import torch
import triton
import triton.language as tl

from solutions.common.triton.mxfp4.gemm1_mxfp4 import gemm1_mxfp4, gemm1_mxfp4_ref
from solutions.common.triton.mxfp4.gemm2_mxfp4 import gemm2_mxfp4, gemm2_mxfp4_ref
from solutions.common.triton.mxfp4.weights import dequantised_ref, weight_tile
from solutions.common.triton.permute import permute_ref
from solutions.common.triton.tiles import Tile

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton compiles for the GPU in this process"
)
devices = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = [
    pytest.mark.parametrize("device", devices),
    pytest.mark.usefixtures("poisoned_scratch"),
]

EXPERTS, HIDDEN, INTER, TOP_K = 3, 384, 256, 2
TILE = Tile(16, 128, 3, 1, 4, 3, programs=3)


@triton.jit
def dequantise_kernel(w_ptr, scale_ptr, even_ptr, odd_ptr):
    """Rows of 64 bytes, each with one scale."""
    row = tl.arange(0, 4)[:, None]
    at = row * 64 + tl.arange(0, 64)[None, :]
    even, odd = weight_tile(w_ptr + at, scale_ptr + row + 0 * at)
    tl.store(even_ptr + at, even)
    tl.store(odd_ptr + at, odd)


def random_bytes(*shape, low=-128, high=128):
    return torch.randint(low, high, shape, dtype=torch.int16).to(torch.int8)


def test_every_byte_is_exact_at_every_scale(device):
    packed = torch.arange(256).to(torch.uint8).view(torch.int8).view(4, 64).to(device)
    wide = packed.repeat_interleave(16, 1)  # a group of 16 bytes of one value has one scale
    for byte in (1, 2, 63, 100, 126, 127, 128, 160, 200, 250, 252, 255):
        scales = torch.full((4, 1), byte, dtype=torch.uint8, device=device).view(torch.int8)
        even = torch.empty(4, 64, dtype=torch.bfloat16, device=device)
        odd = torch.empty_like(even)
        dequantise_kernel[(1,)](packed, scales, even, odd)
        expected = dequantised_ref(wide, scales.expand(4, 64).contiguous()).view(4, 64, 32)
        for got, at in ((even, 0), (odd, 1)):
            assert torch.equal(got.float().nan_to_num(1e38), expected[..., at].nan_to_num(1e38))


def permutation_of(num_tokens, device):
    experts = torch.randint(-1, EXPERTS, (num_tokens, TOP_K), dtype=torch.int32, device=device)
    return permute_ref(experts, EXPERTS, TILE.block_m)


@pytest.mark.parametrize("num_tokens", [1, 19])
def test_gemm1(device, num_tokens):
    torch.manual_seed(num_tokens)
    permutation = permutation_of(num_tokens, device)
    x = torch.randn(num_tokens, HIDDEN).to(torch.float8_e4m3fn).to(device)
    x_scale = torch.rand(num_tokens, HIDDEN // 128, device=device)
    w = random_bytes(EXPERTS, 2 * INTER, HIDDEN // 2).to(device)
    w_scale = random_bytes(EXPERTS, 2 * INTER, HIDDEN // 32, low=100, high=127).to(device)
    got = gemm1_mxfp4(x, x_scale, w, w_scale, permutation, TILE)
    expected = gemm1_mxfp4_ref(x, x_scale, w, w_scale, permutation, TILE.block_m)
    rows = int(permutation.num_tiles) * TILE.block_m
    scale = float(expected.abs().max().clamp(min=1))
    assert torch.allclose(got[:rows].float(), expected[:rows], rtol=2**-7, atol=2**-8 * scale)


@pytest.mark.parametrize("first_column", [0, 128])
def test_gemm2(device, first_column):
    torch.manual_seed(first_column)
    permutation = permutation_of(11, device)
    rows = len(permutation.pair_of_row)
    h = torch.randn(rows, INTER).to(torch.float8_e4m3fn).to(device)
    h_scale = torch.rand(rows, INTER // 128, device=device)
    w = random_bytes(EXPERTS, HIDDEN, INTER // 2).to(device)
    w_scale = random_bytes(EXPERTS, HIDDEN, INTER // 32, low=100, high=127).to(device)
    got = torch.empty(rows, 256, dtype=torch.bfloat16, device=device)
    gemm2_mxfp4(h, h_scale, w, w_scale, permutation, first_column, got, TILE)
    expected = gemm2_mxfp4_ref(h, h_scale, w, w_scale, permutation, TILE.block_m, first_column, 256)
    used = int(permutation.num_tiles) * TILE.block_m
    live = permutation.pair_of_row[:used] >= 0
    scale = float(expected.float().abs().max().clamp(min=1))
    assert torch.allclose(
        got[:used][live].float(), expected[:used][live].float(), rtol=2**-7, atol=2**-8 * scale
    )
