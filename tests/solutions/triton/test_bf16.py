"""The bf16 layer: both styles of Triton kernels, and torch's grouped GEMM.

Without a GPU the kernels run through Triton's interpreter at the small layer; tests marked `gpu`
run the full one.
"""

import ahead_of_time
import pytest
import torch
from every_solution import (
    assert_close,
    assert_same_bits,
    expected_output,
    relative_error,
    run,
    serving,
    slow,
)
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.packing import manifest
from permuted_rows import rows_of_tokens
from random_values import Draw

from solutions.common.triton.bf16.gemm1_bf16 import gemm1_bf16, gemm1_bf16_ref
from solutions.common.triton.bf16.gemm2_bf16 import gemm2_bf16, gemm2_bf16_ref
from solutions.common.triton.bf16.sum_rows import sum_rows, sum_rows_ref
from solutions.common.triton.gemms.expert_tiles import Tile
from solutions.common.triton.rows.permute import permute, permute_ref

GEMMS = ("gemm1_bf16_kernel", "gemm2_bf16_kernel")
NUM_EXPERTS = 16  # of the small layer
TILE = (16, 64, 64)
TILES = [TILE, *map(slow, [(32, 128, 128), (64, 128, 64), (128, 64, 64)])]

both_layers = serving("bf16", "bf16_small")


# ---- stages ----


def assert_stage(output, expected):
    assert torch.isfinite(output).all()
    assert relative_error(output, expected) < 5e-3


class Case:
    """The small layer's arguments, and the rows of its tokens in tiles of these sizes."""

    def __init__(self, sizes, padded):
        arguments = layer_arguments("bf16_small", 45)
        tensors = arguments.values()
        self.x, self.ids, self.weights, self.w13, self.w2, self.output = tensors
        self.tile = Tile(*sizes, 8, 1, 4, 3, 4)
        self.rows = permute(self.ids, NUM_EXPERTS, self.tile.block_m, padded)
        self.expected_rows = permute_ref(
            self.ids, NUM_EXPERTS, self.tile.block_m, padded
        )
        self.used = rows_of_tokens(self.expected_rows)

    def random(self, columns):
        """Return random values for every row."""
        return Draw(DEVICE).normal(len(self.rows.pair_of_row), columns).bfloat16()


# align_fused_bf16 pads the rows of an expert, gather_scatter_bf16 does not
each_order = pytest.mark.parametrize("padded", [False, True])
each_tile = pytest.mark.parametrize("sizes", TILES, ids=str)


@each_order
@each_tile
def test_gemm1(sizes, padded):
    case = Case(sizes, padded)
    h = gemm1_bf16(case.x, case.w13, case.rows, case.tile, swiglu=not padded)
    expected = gemm1_bf16_ref(
        case.x, case.w13, case.expected_rows, case.tile.block_m, swiglu=not padded
    )
    assert_stage(h[case.used], expected[case.used])


@each_tile
def test_silu_mul(packed_module, sizes):
    case = Case(sizes, padded=True)
    h = case.random(case.w13.shape[1])
    silu = packed_module("align_fused_bf16", "silu_mul", "bf16_small")
    output = silu.silu_mul(h, case.rows, case.tile.block_m, 4)
    assert_stage(output[case.used], silu.silu_mul_ref(h)[case.used])


@each_order
@each_tile
def test_gemm2(sizes, padded):
    case = Case(sizes, padded)
    h = case.random(case.w2.shape[2])
    y = gemm2_bf16(h, case.w2, case.weights, case.rows, case.tile)
    expected = gemm2_bf16_ref(
        h, case.w2, case.weights, case.expected_rows, case.tile.block_m
    )
    assert_stage(y[case.used], expected[case.used])


@each_order
def test_sum_rows(padded):
    case = Case(TILE, padded)
    y = case.random(case.x.shape[1])
    row_of_pair = case.rows.row_of_pair if padded else None
    expected = torch.empty_like(case.x)

    sum_rows(y, row_of_pair, case.output)

    sum_rows_ref(y, row_of_pair, expected)
    assert_stage(case.output, expected)


# ---- whole layers ----


def check_layer(layer, layer_key, arguments):
    """Check that the output is right, and as exact as bf16 intermediates let it be."""
    output = run(layer, arguments)

    expected = expected_output(layer_key, arguments)
    assert_close(output, expected)
    if expected.numel():
        assert relative_error(output, expected) < 8e-3
    return output


@serving("bf16_small")
@pytest.mark.parametrize("num_tokens", [0, 1, 16, 37, slow(200)])
def test_layer(layer, layer_key, num_tokens):
    """The reference's answer at every kind of tile, on FIB's build of what is packed, and the same
    bits again.
    """
    arguments = layer_arguments(layer_key, num_tokens, seed=num_tokens)
    output = check_layer(layer, layer_key, arguments)
    assert_same_bits(run(layer, arguments), output)


@serving("bf16")
@pytest.mark.parametrize("num_tokens", [2, 64, 129, 256, 511, 1024, 1025, 2048, 4097])
def test_layer_at_full_width(layer, layer_key, num_tokens):
    """Every tile of the table, one program that sorts and many, and sizes that are no powers of
    two.
    """
    arguments = layer_arguments(layer_key, num_tokens, seed=num_tokens)
    check_layer(layer, layer_key, arguments)


@both_layers
def test_all_tokens_on_the_same_experts(layer, layer_key):
    num_tokens = 70 if DEVICE == "cpu" else 3000
    arguments = layer_arguments(layer_key, num_tokens)
    arguments["expert_ids"] = arguments["expert_ids"][:1].repeat(num_tokens, 1)
    check_layer(layer, layer_key, arguments)


# ---- compiled ahead of time ----


def tabled_tokens(table):
    """Return token counts on both sides of every border of a table of tiles."""
    tokens = {1, 8192}
    for limit, *_ in table:
        if limit:
            tokens |= {int(limit * NUM_EXPERTS), int(limit * NUM_EXPERTS) + 1}
    return sorted(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["align_fused_bf16", "gather_scatter_bf16"])
def test_every_tabled_tile_compiles(packed_module, name, architecture, tmp_path):
    """Catches a first call that dies in the compiler, or does not fit the machine.

    Also a kernel several times slower than it should be, because it spills or leaves the newest
    tensor cores.
    """
    table = packed_module(name, "tiles").TABLE[architecture]
    tensor_cores = {"sm_90": "wgmma", "sm_100": "tcgen05"}[architecture]

    tokens = tabled_tokens(table)
    kernels = ahead_of_time.compiled(name, "bf16", architecture, tokens, tmp_path)

    assert {kernel["kernel"] for kernel in kernels} == set(
        manifest.read_manifest(name).stages
    )
    for kernel in kernels:
        assert kernel["shared"] <= ahead_of_time.SHARED_MEMORY[architecture]
        assert not kernel["stack"]
        if kernel["kernel"] in GEMMS:
            assert kernel[tensor_cores]
            assert kernel["bulk_tensor_copy"]
