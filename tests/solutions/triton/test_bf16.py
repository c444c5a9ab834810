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

from solutions.common.triton.bf16.gemm1_bf16 import gemm1_bf16, gemm1_bf16_ref
from solutions.common.triton.bf16.gemm2_bf16 import gemm2_bf16, gemm2_bf16_ref
from solutions.common.triton.bf16.sum_rows import sum_rows, sum_rows_ref
from solutions.common.triton.gemms.expert_tiles import Tile
from solutions.common.triton.rows.permute import permute, permute_ref

GEMMS = ("gemm1_bf16_kernel", "gemm2_bf16_kernel")
NUM_EXPERTS = 16  # of the small layer
TILES = [(16, 64, 64), *map(slow, [(32, 128, 128), (64, 128, 64), (128, 64, 64)])]

both_layers = serving("bf16", "bf16_small")


# ---- stages ----


def assert_stage(output, expected):
    assert torch.isfinite(output).all()
    assert relative_error(output, expected) < 5e-3


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sizes", TILES, ids=str)
def test_stages(packed_module, sizes, padded):
    """Each kernel against its plain statement: on padded rows as align_fused_bf16 uses it, on
    others as gather_scatter_bf16.
    """
    x, ids, weights, w13, w2, output = layer_arguments("bf16_small", 45).values()
    tile = Tile(*sizes, 8, 1, 4, 3, 4)
    rows = permute(ids, NUM_EXPERTS, tile.block_m, padded)
    expected_rows = permute_ref(ids, NUM_EXPERTS, tile.block_m, padded)
    used = expected_rows.row_of_pair.flatten().long()

    h = gemm1_bf16(x, w13, rows, tile, swiglu=not padded)
    expected_h = gemm1_bf16_ref(x, w13, expected_rows, tile.block_m, swiglu=not padded)
    assert_stage(h[used], expected_h[used])

    if padded:
        silu = packed_module("align_fused_bf16", "silu_mul", "bf16_small")
        expected_h = silu.silu_mul_ref(h)
        h = silu.silu_mul(h, rows, tile.block_m, 4)
        assert_stage(h[used], expected_h[used])

    y = gemm2_bf16(h, w2, weights, rows, tile)
    expected_y = gemm2_bf16_ref(h, w2, weights, expected_rows, tile.block_m)
    assert_stage(y[used], expected_y[used])

    row_of_pair = rows.row_of_pair if padded else None
    expected = torch.empty_like(x)
    sum_rows(y, row_of_pair, output)
    sum_rows_ref(y, row_of_pair, expected)
    assert_stage(output, expected)


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
@pytest.mark.parametrize("num_tokens", [0, 1, 16, 37, slow(250)])
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
    check_layer(layer, layer_key, layer_arguments(layer_key, num_tokens, seed=num_tokens))


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


def built_tile(kernel):
    """Return (BLOCK_M, BLOCK_N, BLOCK_K, warps) of a GEMM."""
    constants = kernel["constants"]
    sizes = [constants[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    return (*sizes, kernel["num_warps"])


def tabled_tiles(table):
    """Return the same of a table."""
    tiles = set()
    for _, *gemm_tiles in table:
        for tile in gemm_tiles:
            tiles.add((tile.block_m, tile.block_n, tile.block_k, tile.num_warps))
    return tiles


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["align_fused_bf16", "gather_scatter_bf16"])
def test_every_tabled_tile_compiles(packed_module, name, architecture, tmp_path):
    """The first call at some token count dies in the compiler, or does not fit the machine.

    Also a kernel several times slower than it should be, because it spills or leaves the newest
    tensor cores.
    """
    table = packed_module(name, "tiles").TABLE[architecture]
    tensor_cores = {"sm_90": "wgmma", "sm_100": "tcgen05"}[architecture]

    kernels = ahead_of_time.compiled(name, "bf16", architecture, tabled_tokens(table), tmp_path)

    assert {kernel["kernel"] for kernel in kernels} == set(manifest.read_manifest(name).stages)
    built = set()
    for kernel in kernels:
        assert kernel["shared"] <= ahead_of_time.SHARED_MEMORY[architecture]
        assert not kernel["stack"]
        if kernel["kernel"] in GEMMS:
            assert kernel[tensor_cores]
            assert kernel["bulk_tensor_copy"]
            built.add(built_tile(kernel))
    assert tabled_tiles(table) <= built
