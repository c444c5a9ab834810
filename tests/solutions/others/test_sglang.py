"""sglang_triton: SGLang's kernel is loaded and called as it wants to be, and our stages around it
are right.
"""

import importlib
import sys

import ahead_of_time
import pytest
import torch
from every_solution import expected_output, relative_error, share_of_close, slow
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest
from permuted_rows import rows_of_tokens
from random_values import Draw

from solutions.common.triton.rows.permute import permute_ref
from solutions.common.triton.rows.swiglu_quant import swiglu_quant_ref

SMALL = [*catalogue.SIGMOID_BIAS.small(), *catalogue.RENORM.small()]
needs_sglang = pytest.mark.skipif(
    not eligibility.is_installed("sglang"),
    reason="needs sglang; pip install --no-deps sglang",
)


@pytest.fixture
def module(packed_module):
    """A function of a name and a layer key that returns that module of the packed solution."""
    return lambda name, layer_key="small": packed_module(
        "sglang_triton", name, layer_key
    )


# ---- loading the kernel ----

KERNELS = """
import triton
import triton.language as tl
from sglang.srt.utils import is_cuda
from sglang.no_such_library import per_token_group_quant_fp8  # load.py puts a stub here

SETTLED = "on a GPU" if is_cuda() else "without"

@triton.jit
def fused_moe_kernel(a_ptr, N, even_Ks: tl.constexpr, FUSE_SWIGLU: tl.constexpr = False):
    pass
"""


@pytest.fixture
def write_kernels(tmp_path, monkeypatch):
    """A function that puts a package sglang in reach, with KERNELS in a folder, and returns their
    file.
    """

    def write(folder):
        file = tmp_path / "sglang" / folder / "fused_moe_triton_kernels.py"
        file.parent.mkdir(parents=True)
        package = tmp_path / "sglang" / "__init__.py"
        package.write_text("raise ImportError('the package must not be imported')")
        file.write_text(KERNELS)
        importlib.invalidate_caches()
        return file

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    return write


@pytest.mark.parametrize(
    "folder", ["srt/layers/moe/fused_moe_triton", "kernels/ops/moe"]
)
def test_the_kernel_is_loaded_without_its_package(module, write_kernels, folder):
    """That one module needs none of SGLang's compiled libraries, wherever a version keeps it."""
    write_kernels(folder)
    load = module("load")
    before = set(sys.modules)

    kernel = load.load_kernel()

    assert kernel.arg_names == ["a_ptr", "N", "even_Ks", "FUSE_SWIGLU"]
    for name in set(sys.modules) - before:
        assert not name.startswith("sglang")


def test_a_kernel_that_is_not_there_is_named(module, write_kernels):
    write_kernels("kernels/ops/moe").unlink()
    with pytest.raises(ImportError, match="fused_moe_triton_kernels.py"):
        module("load").load_kernel()


def test_what_a_newer_sglang_adds_keeps_its_default(module, write_kernels):
    """FUSE_SWIGLU is what it adds; even_Ks, which we know, gets our value."""
    write_kernels("kernels/ops/moe")
    gemm = module("grouped_gemm")
    assert gemm._OPTIONAL == {"even_Ks": True, "FUSE_SWIGLU": False}
    assert gemm._ORDINARY == ["a_ptr", "N"]


# ---- tiles ----


@pytest.mark.parametrize("intermediate", [384, 512, 768, 1536, 2048])
def test_both_gemms_share_the_order_of_rows(module, intermediate):
    """Catches rows padded to one tile and multiplied by another."""
    choose_configs = module("tiles").choose_configs
    for rows_per_expert in (0.03, 4, 4.1, 12, 12.1, 24, 24.1, 32, 500):
        first, second, _ = choose_configs(rows_per_expert, intermediate)
        assert first.keys() == second.keys(), rows_per_expert
        assert first["BLOCK_SIZE_M"] == second["BLOCK_SIZE_M"], rows_per_expert


# ---- our stages ----


ROUTING = (
    "routing_logits",
    "routing_bias",
    "local_expert_offset",
    "routed_scaling_factor",
)
ABSENT = {"routing_bias": None, "local_expert_offset": 0, "routed_scaling_factor": 1.0}


@pytest.mark.parametrize("layer_key", SMALL)
def test_routing_one_token_is_routing_and_sorting_it(module, layer_key):
    """Rows of a decode step at batch 1, which has a launch of its own."""
    route_one = module("route_one", layer_key).route_one
    route = module("common.triton.rows.route", layer_key).route
    permute = module("common.triton.rows.permute", layer_key).permute

    for seed in range(3):
        arguments = ABSENT | layer_arguments(layer_key, 1, seed=seed)
        routing = [arguments[name] for name in ROUTING]
        local = len(arguments["gemm2_weights"])
        expert, expected_weight = route(*routing, local)
        expected = permute(expert, local, 16, padding=expert.numel())

        weight, rows = route_one(*routing, local, 16)

        assert torch.equal(weight, expected_weight)
        assert_same_rows(rows, expected)


def assert_same_rows(rows, expected):
    """Check the results of two permutations, without what neither defines."""
    num_rows = int(expected.num_rows)
    num_tiles = int(expected.num_tiles)
    assert num_rows > 0
    assert torch.equal(rows.row_of_pair, expected.row_of_pair)
    assert int(rows.num_tiles) == num_tiles
    assert int(rows.num_rows) == num_rows
    assert torch.equal(rows.pair_of_row[:num_rows], expected.pair_of_row[:num_rows])
    assert torch.equal(rows.tile_expert[:num_tiles], expected.tile_expert[:num_tiles])


class OverflowCase:
    """Tokens of a few experts, and the second half of the columns of their weights."""

    TOP_K = 4
    BLOCK_M = 16
    COLUMNS = 256
    DEPTH = 384
    NUM_TOKENS = 21
    EXPERTS = 3

    def __init__(self):
        draw = Draw(DEVICE)
        expert = draw.integers(-1, self.EXPERTS, self.NUM_TOKENS, self.TOP_K)
        self.padding = expert.numel()
        self.rows = permute_ref(
            expert, self.EXPERTS, self.BLOCK_M, padding=self.padding
        )
        token = self.rows.pair_of_row // self.TOP_K
        self.token = token.clamp(max=self.NUM_TOKENS - 1).long()

        self.x = draw.fp8(self.NUM_TOKENS, self.DEPTH)
        self.x_scale = draw.normal(self.DEPTH // 128, self.NUM_TOKENS).t()
        w = draw.fp8(self.EXPERTS, 2 * self.COLUMNS, self.DEPTH)
        w_scale_shape = (self.EXPERTS, 2 * self.COLUMNS // 128, self.DEPTH // 128)
        w_scale = draw.normal(*w_scale_shape)
        self.w = w[:, self.COLUMNS :]
        self.w_scale = w_scale[:, self.COLUMNS // 128 :]

    def operands(self, in_order):
        """Return what the kernel takes; in_order: the tokens in order of rows."""
        x = self.x
        x_scale = self.x_scale
        if in_order:
            x = x[self.token]
            x_scale = x_scale[self.token].contiguous()
        return x, x_scale, x_scale.stride(), self.w, self.w_scale, self.rows

    def expected(self, row):
        """Return the row's product in fp32; None for a row of padding."""
        if self.rows.pair_of_row[row] == self.padding:
            return None
        token = self.token[row]
        expert = self.rows.tile_expert[row // self.BLOCK_M]
        x_factor = self.x_scale[token].repeat_interleave(128)
        w_row_factor = self.w_scale[expert].repeat_interleave(128, 0)
        w_factor = w_row_factor.repeat_interleave(128, 1)
        x = self.x[token].float() * x_factor
        w = self.w[expert].float() * w_factor
        return w @ x


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("first_tile", [0, 2])
def test_tiles_beyond_the_grid_are_multiplied(module, in_order, first_tile):
    """Catches a rank that gets more than twice its share of the rows."""
    case = OverflowCase()
    output = Draw(DEVICE).full_of_nan(len(case.token), case.COLUMNS)

    overflow_gemm = module("overflow_gemm").overflow_gemm
    overflow_gemm(*case.operands(in_order), case.BLOCK_M, first_tile, in_order, output)

    for row in range(int(case.rows.num_rows)):
        expected = case.expected(row)
        if expected is None or row < first_tile * case.BLOCK_M:
            assert output[row].isnan().all()
        else:
            assert relative_error(output[row], expected) < 0.01


@pytest.mark.parametrize("num_tokens", [9, 70])
def test_swiglu_quant_rows_is_the_shared_stage(module, num_tokens):
    """Rows of padding, NaN here, are read."""
    draw = Draw(DEVICE)
    expert = draw.integers(-1, 5, num_tokens, 8)
    expert[0] = -1
    permutation = permute_ref(expert, 5, 16, padding=expert.numel())
    used = rows_of_tokens(permutation)
    num_rows = len(permutation.pair_of_row)
    values = draw.normal(len(used), 512)
    g = draw.full_of_nan(num_rows, 512)
    g[used] = values.bfloat16()

    h, scale = module("swiglu_quant_rows").swiglu_quant_rows(g, permutation)

    expected_h, expected_scale = swiglu_quant_ref(g[used])
    largest_step = 32  # of FP8
    torch.testing.assert_close(scale[used], expected_scale)
    torch.testing.assert_close(
        h[used].float(), expected_h.float(), rtol=0, atol=largest_step
    )


# ---- with SGLang ----


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@needs_sglang
@pytest.mark.parametrize("layer_key", ["small", *map(slow, SMALL[1:])])
@pytest.mark.parametrize(("num_tokens", "tiles"), [(1, None), (9, None), (9, 2)])
def test_kernel_gives_the_definitions_answer(
    module, layer_key, num_tokens, tiles, monkeypatch
):
    """Catches a parameter of the kernel that means something else, and rows beyond its grid."""
    main = module("main", layer_key)
    if tiles:
        monkeypatch.setattr(main, "usual_tiles", lambda *sizes: tiles)
    arguments = layer_arguments(layer_key, num_tokens)
    run = main.run_renorm if layer_key in catalogue.RENORM.small() else main.run

    run(*arguments.values())

    assert (
        share_of_close(arguments["output"], expected_output(layer_key, arguments)) > 0.8
    )


@needs_sglang
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_stages_compile(architecture, tmp_path):
    """Catches a first call that dies in the compiler."""
    tokens = (1, 300, 500, 1000, 4096)
    kernels = ahead_of_time.compiled(
        "sglang_triton", "full", architecture, tokens, tmp_path
    )

    stages = manifest.read_manifest("sglang_triton").stages
    assert {kernel["kernel"] for kernel in kernels} == set(stages)
    for kernel in kernels:
        assert kernel["shared"] <= ahead_of_time.SHARED_MEMORY[architecture], kernel
        assert not kernel["reloads"], kernel
