"""sglang_triton: SGLang's kernel is loaded and called as it wants to be, and our stages around
it.

A test's docstring says what fails, or which case it is, without what is tested.
"""

import importlib
import sys

import ahead_of_time
import pytest
import torch
from every_solution import expected_output, slow
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest

from solutions.common.triton.rows.permute import permute_ref
from solutions.common.triton.rows.swiglu_quant import swiglu_quant_ref

SMALL = [*catalogue.SIGMOID_BIAS.small(), *catalogue.RENORM.small()]
needs_sglang = pytest.mark.skipif(
    not eligibility.is_installed("sglang"), reason="needs sglang; pip install --no-deps sglang"
)


@pytest.fixture
def module(packed_module):
    """A function of a name and a layer key that returns that module of the packed solution."""
    return lambda name, layer_key="small": packed_module("sglang_triton", name, layer_key)


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


@pytest.mark.parametrize("folder", ["srt/layers/moe/fused_moe_triton", "kernels/ops/moe"])
def test_the_kernel_is_loaded_without_its_package(module, write_kernels, folder):
    """That one module needs none of SGLang's compiled libraries, wherever a
    version keeps it.
    """
    write_kernels(folder)
    load = module("load")
    before = set(sys.modules)

    kernel = load.load_kernel()

    assert kernel.arg_names == ["a_ptr", "N", "even_Ks", "FUSE_SWIGLU"]
    assert not any(name.startswith("sglang") for name in set(sys.modules) - before)


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
    """Rows padded to one tile and multiplied by another."""
    choose_configs = module("tiles").choose_configs
    for rows_per_expert in (0.03, 4, 4.1, 12, 12.1, 24, 24.1, 32, 500):
        first, second, _ = choose_configs(rows_per_expert, intermediate)
        assert first.keys() == second.keys(), rows_per_expert
        assert first["BLOCK_SIZE_M"] == second["BLOCK_SIZE_M"], rows_per_expert


# ---- our stages ----


@pytest.mark.parametrize("layer_key", SMALL)
def test_routing_one_token_is_routing_and_sorting_it(module, layer_key):
    """Rows of a decode step at batch 1, which has a launch of its own."""
    route_one = module("route_one", layer_key).route_one
    route = module("common.triton.rows.route", layer_key).route
    permute = module("common.triton.rows.permute", layer_key).permute
    absent = {"routing_bias": None, "local_expert_offset": 0, "routed_scaling_factor": 1.0}
    names = ("routing_logits", "routing_bias", "local_expert_offset", "routed_scaling_factor")

    for seed in range(3):
        arguments = absent | layer_arguments(layer_key, 1, seed=seed)
        routing = [arguments[name] for name in names]
        local = len(arguments["gemm2_weights"])
        expert, expected_weight = route(*routing, local)
        expected = permute(expert, local, 16, padding=expert.numel())
        num_rows = int(expected.num_rows)
        num_tiles = int(expected.num_tiles)

        weight, rows = route_one(*routing, local, 16)

        assert num_rows > 0
        assert torch.equal(weight, expected_weight)
        assert torch.equal(rows.row_of_pair, expected.row_of_pair)
        assert int(rows.num_tiles) == num_tiles
        assert int(rows.num_rows) == num_rows
        assert torch.equal(rows.pair_of_row[:num_rows], expected.pair_of_row[:num_rows])
        assert torch.equal(rows.tile_expert[:num_tiles], expected.tile_expert[:num_tiles])


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("first_tile", [0, 2])
def test_tiles_beyond_the_grid_are_multiplied(module, in_order, first_tile):
    """A rank that gets more than twice its share of the rows."""
    torch.manual_seed(0)
    top_k = 4
    block_m = 16
    columns = 256
    depth = 384
    expert = torch.randint(-1, 3, (21, top_k), dtype=torch.int32, device=DEVICE)
    rows = permute_ref(expert, 3, block_m, padding=expert.numel())
    token = (rows.pair_of_row // top_k).clamp(max=20).long()
    x = torch.randn(21, depth, device=DEVICE).to(torch.float8_e4m3fn)
    x_scale = torch.randn(depth // 128, 21, device=DEVICE).t()
    w = torch.randn(3, 2 * columns, depth, device=DEVICE).to(torch.float8_e4m3fn)[:, columns:]
    w_scale = torch.randn(3, 2 * columns // 128, depth // 128, device=DEVICE)[:, columns // 128 :]
    x_by_row = x.float()[token] * x_scale.repeat_interleave(128, 1)[token]
    whole_w = w.float() * w_scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    if in_order:
        x = x[token]
        x_scale = x_scale[token].contiguous()
    output = torch.full((len(token), columns), torch.nan, dtype=torch.bfloat16, device=DEVICE)

    operands = (x, x_scale, x_scale.stride(), w, w_scale, rows)
    module("overflow_gemm").overflow_gemm(*operands, block_m, first_tile, in_order, output)

    for row in range(int(rows.num_rows)):
        if row < first_tile * block_m or rows.pair_of_row[row] == expert.numel():
            assert output[row].isnan().all()
        else:
            expected = whole_w[rows.tile_expert[row // block_m]] @ x_by_row[row]
            assert (output[row].float() - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("num_tokens", [9, 70])
def test_swiglu_quant_rows_is_the_shared_stage(module, num_tokens):
    """Rows of padding, NaN here, are read."""
    torch.manual_seed(0)
    expert = torch.randint(-1, 5, (num_tokens, 8), dtype=torch.int32, device=DEVICE)
    expert[0] = -1
    permutation = permute_ref(expert, 5, 16, padding=expert.numel())
    used = permutation.row_of_pair[expert >= 0].long()
    shape = (len(permutation.pair_of_row), 512)
    g = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=DEVICE)
    g[used] = torch.randn(len(used), 512, device=DEVICE).bfloat16()

    h, scale = module("swiglu_quant_rows").swiglu_quant_rows(g, permutation)

    expected_h, expected_scale = swiglu_quant_ref(g[used])
    one_step = 32  # of FP8 at its largest
    torch.testing.assert_close(scale[used], expected_scale)
    assert (h[used].float() - expected_h.float()).abs().max() <= one_step


# ---- with SGLang ----


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@needs_sglang
@pytest.mark.parametrize("layer_key", ["small", *map(slow, SMALL[1:])])
@pytest.mark.parametrize(("num_tokens", "tiles"), [(1, None), (9, None), (9, 2)])
def test_kernel_gives_the_definitions_answer(module, layer_key, num_tokens, tiles, monkeypatch):
    """A parameter of the installed kernel that means something else; rows beyond
    its grid.
    """
    main = module("main", layer_key)
    if tiles:
        monkeypatch.setattr(main, "usual_tiles", lambda *sizes: tiles)
    arguments = layer_arguments(layer_key, num_tokens)
    run = main.run_renorm if layer_key in catalogue.RENORM.small() else main.run

    run(*arguments.values())

    output = arguments["output"].float()
    expected = expected_output(layer_key, arguments).float()
    assert torch.isclose(output, expected, rtol=0.1, atol=0.1).float().mean() > 0.8


@needs_sglang
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_stages_compile(architecture, tmp_path):
    """The first call at some token count dies in the compiler."""
    tokens = (1, 300, 500, 1000, 4096)
    kernels = ahead_of_time.compiled("sglang_triton", "full", architecture, tokens, tmp_path)

    stages = manifest.read_manifest("sglang_triton").stages
    assert {kernel["kernel"] for kernel in kernels} == set(stages)
    for kernel in kernels:
        assert kernel["shared"] <= ahead_of_time.SHARED_MEMORY[architecture], kernel
        assert not kernel["reloads"], kernel
