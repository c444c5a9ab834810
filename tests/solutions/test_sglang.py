"""sglang_triton: SGLang's kernel is loaded and called as it wants to be, and our stages around
it.
"""

import importlib
import sys
from functools import partial
from types import SimpleNamespace

import ahead_of_time
import pytest
import torch
from layer_inputs import DEVICE, arguments, wanted
from moebench.operators import moe_fp8_block_scale as moe
from moebench.operators import moe_fp8_block_scale_renorm as renorm
from moebench.packing import eligibility, manifest

from solutions.common.triton import permute
from solutions.common.triton.swiglu_quant import swiglu_quant_ref

SMALL = [*moe.small(), *renorm.small()]


SGLANG_STAND_IN = """
import triton
from sglang.srt.utils import is_cuda
from sglang.no_such_library import per_token_group_quant_fp8

SETTLED = "on a GPU" if is_cuda() else "without"

@triton.jit
def fused_moe_kernel(a_ptr, N):
    pass
"""


@pytest.fixture
def module(packed_module):
    """Name of a module, and a geometry -> that module of the packed solution."""
    return lambda name, geometry="small": packed_module("sglang_triton", name, geometry)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a package sglang in reach: text of its kernels' module, its place, and text of its
    __init__.py -> file.
    """

    def put(text=SGLANG_STAND_IN, place="kernels/ops/moe", package=""):
        file = tmp_path / "sglang" / place / "fused_moe_triton_kernels.py"
        file.parent.mkdir(parents=True)
        (tmp_path / "sglang" / "__init__.py").write_text(package)
        file.write_text(text)
        importlib.invalidate_caches()
        return file

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    return put


@pytest.mark.parametrize("place", ["srt/layers/moe/fused_moe_triton", "kernels/ops/moe"])
def test_the_kernel_is_loaded_without_its_package(module, place, stand_in):
    """That one module needs none of SGLang's compiled libraries, wherever a
    version keeps it.
    """
    file = stand_in(place=place, package="raise ImportError('the package must not be imported')")
    load, before = module("load"), set(sys.modules)
    assert load.load_kernel().arg_names == ["a_ptr", "N"]
    assert not any(name.startswith("sglang") for name in set(sys.modules) - before)
    file.unlink()
    with pytest.raises(ImportError, match="fused_moe_triton_kernels.py"):
        load.load_kernel()


def test_what_a_newer_sglang_adds_keeps_its_default(module, stand_in):
    """A release whose kernel has one parameter more than those that we know."""
    parameters = "a_ptr, N, even_Ks: tl.constexpr, FUSE_SWIGLU: tl.constexpr = False"
    newer = SGLANG_STAND_IN.replace("a_ptr, N", parameters).replace(
        "import triton", "import triton\nfrom triton import language as tl", 1
    )
    stand_in(newer)
    gemm = module("grouped_gemm")
    assert gemm._OPTIONAL == {"even_Ks": True, "FUSE_SWIGLU": False}
    assert gemm._ORDINARY == ["a_ptr", "N"]


def test_both_gemms_share_the_order_of_rows(module):
    """Rows padded to one tile and multiplied by another."""
    tiles = module("tiles")
    for intermediate in (384, 512, 768, 1536, 2048):
        for rows_per_expert in (0.03, 4, 4.1, 12, 12.1, 24, 24.1, 32, 500):
            first, second, _ = tiles.choose_configs(rows_per_expert, intermediate)
            assert first.keys() == second.keys(), (rows_per_expert, intermediate)
            assert first["BLOCK_SIZE_M"] == second["BLOCK_SIZE_M"], (rows_per_expert, intermediate)


def test_launches_with_and_without_descriptors_are_told_apart(module, stand_in, monkeypatch):
    """The second GEMM through the launcher of the first, which was compiled
    without TMA.
    """
    stand_in()
    gemm = module("grouped_gemm")
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *ordinary, **keywords: launched.append((grid, keywords))

    monkeypatch.setattr(gemm, "_KERNEL", Kernel())
    config, _, _ = module("tiles").choose_configs(100, 512)
    int32 = partial(torch.zeros, dtype=torch.int32)
    permutation = permute.Permutation(int32(9, 8), int32(192), int32(3), int32(1), int32(1), None)
    x, scale = torch.empty(192, 512, dtype=torch.float8_e4m3fn), torch.empty(192, 4)
    weights, weights_scale = (
        torch.empty(2, 256, 512, dtype=torch.float8_e4m3fn),
        torch.empty(2, 2, 4),
    )
    for in_order in (False, True):
        operands = (x, scale, scale.stride(), weights, weights_scale, permutation)
        gemm.grouped_gemm(*operands, config, tiles=3, x_in_order=in_order, weights_by_tma=True)
    (grid, first), (_, second) = launched
    assert grid == (6,)
    assert (first["top_k"], second["top_k"]) == (8, 1), (
        "a constexpr, and so part of what a launch is known by"
    )


@pytest.mark.parametrize(
    ("share", "num_tokens"),
    [(1 / 8, 1), (1 / 8, 4096), (1 / 8, 16384), (1 / 16, 16384), (1, 16384)],
)
def test_usual_tiles_hold_twice_the_usual_rows(module, share, num_tokens):
    """Times of our own kernel shown as SGLang's, or thousands of programs
    without a tile.
    """
    tiles = module("tiles")
    pairs, local, block_m = num_tokens * 8, int(256 * share), 64
    most = permute.max_tiles(num_tokens, 8, local, block_m)
    usual = tiles.usual_tiles(pairs, share, local, block_m, most)
    assert usual == most or usual < most / 3, "a launch more, for programs that hardly matter"
    for seed in range(5):  # rows of the experts, uneven
        popular = torch.rand(local, generator=torch.Generator().manual_seed(seed)) ** 4
        rows = (popular / popular.sum() * min(2 * share, 1) * pairs).int()
        assert int(rows.add(block_m - 1).floor_divide(block_m).sum()) <= usual


@pytest.mark.parametrize("geometry", SMALL)
def test_routing_one_token_is_routing_and_sorting_it(module, geometry):
    """Rows of a decode step at batch 1, which has a launch of its own."""
    one = module("route_one", geometry)
    route, sort = (module(f"common.triton.{name}", geometry) for name in ("route", "permute"))
    for seed in range(3):
        given = {"routing_bias": None, "local_expert_offset": 0, "routed_scaling_factor": 1.0}
        given |= arguments(geometry, 1, seed=seed)
        names = ("routing_logits", "routing_bias", "local_expert_offset", "routed_scaling_factor")
        routing, local = [given[name] for name in names], len(given["gemm2_weights"])
        expert, want_weight = route.route(*routing, local)
        want = sort.permute(expert, local, 16, padding=expert.numel())
        weight, found = one.route_one(*routing, local, 16)
        tiles, rows = int(want.num_tiles), int(want.num_rows)
        assert rows > 0 and torch.equal(weight, want_weight)
        used = {"pair_of_row": rows, "tile_expert": tiles}
        for name in ("row_of_pair", "num_tiles", "num_rows", *used):
            assert torch.equal(
                getattr(found, name)[: used.get(name)], getattr(want, name)[: used.get(name)]
            ), name


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("first_tile", [0, 2])
def test_tiles_beyond_the_grid_are_multiplied(module, in_order, first_tile):
    """A rank that gets more than twice its share of the rows."""
    overflow = module("overflow_gemm")
    torch.manual_seed(0)
    top_k, block_m, columns, depth = 4, 16, 256, 384
    expert = torch.randint(-1, 3, (21, top_k), dtype=torch.int32, device=DEVICE)
    permutation = permute.permute_ref(expert, 3, block_m, padding=expert.numel())
    rows = len(permutation.pair_of_row)
    token = (permutation.pair_of_row // top_k).clamp(max=20).long()
    x = torch.randn(21, depth, device=DEVICE).to(torch.float8_e4m3fn)
    x_scale = torch.randn(depth // 128, 21, device=DEVICE).t()
    w = torch.randn(3, 2 * columns, depth, device=DEVICE).to(torch.float8_e4m3fn)[:, columns:]
    w_scale = torch.randn(3, 2 * columns // 128, depth // 128, device=DEVICE)[:, columns // 128 :]
    if in_order:
        x, x_scale = x[token], x_scale[token].contiguous()
    out = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    operands = (x, x_scale, x_scale.stride(), w, w_scale, permutation)
    overflow.overflow_gemm(*operands, block_m, first_tile, in_order, out)
    whole_x = x.float() * x_scale.repeat_interleave(128, 1)
    whole_w = w.float() * w_scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    for row in range(int(permutation.num_rows)):
        if permutation.pair_of_row[row] == expert.numel() or row < first_tile * block_m:
            assert out[row].isnan().all()
            continue
        of = whole_x[row if in_order else token[row]]
        want = whole_w[permutation.tile_expert[row // block_m]] @ of
        assert (out[row].float() - want).norm() < 0.01 * want.norm()


@pytest.mark.parametrize("num_tokens", [9, 70])
def test_swiglu_quant_rows_is_the_shared_stage(module, num_tokens):
    """Rows of padding read."""
    swiglu = module("swiglu_quant_rows")
    torch.manual_seed(0)
    expert = torch.randint(-1, 5, (num_tokens, 8), dtype=torch.int32, device=DEVICE)
    expert[0] = -1
    permutation = permute.permute_ref(expert, 5, 16, padding=expert.numel())
    rows = permutation.row_of_pair[expert >= 0].long()
    g = torch.full(
        (len(permutation.pair_of_row), 512), torch.nan, dtype=torch.bfloat16, device=DEVICE
    )
    g[rows] = torch.randn(len(rows), 512, device=DEVICE).bfloat16()
    h, scale = swiglu.swiglu_quant_rows(g, permutation)
    want_h, want_scale = swiglu_quant_ref(g[rows])
    torch.testing.assert_close(scale[rows], want_scale)
    assert (h[rows].float() - want_h.float()).abs().max() <= 32, (
        "more than one step of FP8 at its largest"
    )


def test_captured_launches_overlap_once_their_kind_is_known(module, monkeypatch):
    """What a graph gains, or a graph without it because no launch is ever
    known.
    """
    overlap = module("overlap")
    captured, plain, started = [False], [], []
    monkeypatch.setattr(overlap.torch.cuda, "is_current_stream_capturing", lambda: captured[0])
    monkeypatch.setattr(overlap.torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(
        overlap.torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False
    )
    before = ("function", False, False, None, None, "packed", None, None, None)
    monkeypatch.setattr(
        overlap.launch,
        "launcher_of",
        lambda compiled: (lambda *given: started.append(given), before),
    )

    def first_returns_the_kernel(*args, **keywords):
        plain.append(args)
        return "compiled" if len(plain) == 1 else None

    names = ("x_ptr", "number", "free")
    parameters = [
        SimpleNamespace(name=n, is_constexpr=False, do_not_specialize=n == "free") for n in names
    ]
    parameters.append(SimpleNamespace(name="SIZE", is_constexpr=True, do_not_specialize=False))
    run = overlap._overlapping_run(SimpleNamespace(params=parameters), first_returns_the_kernel)
    captured[0] = True
    for number, free in ((16, 1), (32, 2), (33, 2)):  # 33 is no multiple of 16, as the others are
        run("x", number, free, grid=(5, 6), warmup=False, SIZE=8)
    assert plain == [("x", 16, 1), ("x", 33, 2)]
    (
        (
            *grid,
            stream,
            function,
            cooperative,
            overlapping,
            _,
            _,
            _,
            _,
            _,
            _,
            x,
            number,
            free,
            size,
        ),
    ) = started
    assert (grid, stream, function, cooperative, overlapping) == (
        [5, 6, 1],
        77,
        "function",
        False,
        True,
    )
    assert (x, number, free, size) == ("x", 32, 2, 8)
    captured[0] = False
    run("x", 32, 2, grid=(5,), warmup=False, SIZE=8)
    assert len(started) == 1 and len(plain) == 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(
    not eligibility.is_installed("sglang"), reason="needs sglang; pip install --no-deps sglang"
)
@pytest.mark.parametrize(
    "geometry", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL[1:])]
)
def test_kernel_gives_the_definitions_answer(module, geometry, monkeypatch):
    """A parameter of the installed kernel that means something else; rows beyond
    its grid.
    """
    main = module("main", geometry)
    usual = main.usual_tiles
    for num_tokens, tiles_of in ((1, usual), (9, usual), (9, lambda *sizes: 2)):
        monkeypatch.setattr(main, "usual_tiles", tiles_of)
        given = arguments(geometry, num_tokens)
        (main.run_renorm if geometry in renorm.small() else main.run)(*given.values())
        found, right = given["output"].float(), wanted(geometry, given).float()
        assert torch.isclose(found, right, rtol=0.1, atol=0.1).float().mean() > 0.8


@pytest.mark.skipif(
    not eligibility.is_installed("sglang"), reason="needs sglang; pip install --no-deps sglang"
)
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_stages_compile(architecture, tmp_path):
    """The first call at some token count dies in the compiler."""
    kernels = ahead_of_time.compiled(
        "sglang_triton", "full", architecture, (1, 300, 500, 1000, 4096), tmp_path
    )
    assert {kernel["kernel"] for kernel in kernels} == set(
        manifest.read_manifest("sglang_triton").stages
    )
    room = ahead_of_time.SHARED_MEMORY[architecture]
    assert not [kernel for kernel in kernels if kernel["shared"] > room or kernel["reloads"]]
