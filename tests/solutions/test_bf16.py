"""The bf16 layer: both styles of Triton kernels, and torch's grouped GEMM.

Without a GPU the kernels run through Triton's interpreter at the small geometry; tests marked `gpu` run the full one.
"""

import sys

import ahead_of_time
import pytest
import torch
from bf16_inputs import DEVICE, HERE, inputs
from flashinfer_bench.compile import BuilderRegistry
from harness.judging.tolerances import TOLERANCES, matched_ratios
from harness.packing import eligibility, manifest, pack

from definitions import moe_bf16
from solutions.kernels.permute import permute, permute_ref

SOLUTIONS = ("align_fused_bf16", "gather_scatter_bf16", "torch_grouped_bf16")
STYLES = ("align_fused_bf16", "gather_scatter_bf16")
GEMMS = {"gemm1_kernel", "gemm2_kernel", "gemm1_swiglu_kernel", "gemm2_scatter_kernel"}


@pytest.fixture(params=SOLUTIONS)
def layer(request):
    """The runnable that FIB builds of a packed solution, at the geometry of this machine."""
    packed = pack.pack(request.param)[HERE]
    if reason := eligibility.why_skipped(packed, eligibility.here()):
        pytest.skip(f"{request.param} {reason}")
    return BuilderRegistry.get_instance().build(moe_bf16.definition(HERE), packed)


def run(layer, arguments):
    """A fresh output, which held NaN before the call."""
    output = torch.full_like(arguments["hidden_states"], torch.nan)
    layer(*arguments.values(), output)
    return output


def assert_close(output, wanted):
    """Inside FIB's relaxed and contest tolerances, and as exact as bf16 intermediates let it be."""
    assert torch.isfinite(output).all()
    ratios = matched_ratios(output, wanted)
    for name in ("relaxed", "contest"):
        assert ratios[name] >= TOLERANCES[name].ratio, (name, ratios)
    if wanted.numel():
        error = (output.float() - wanted.float()).norm() / wanted.float().norm()
        assert error < 8e-3, error


# ---- stages ----


def stage(solution, module):
    """A module of a solution, from FIB's build of it: relative imports need the packed folder."""
    packed = pack.pack(solution)["bf16_small"]
    runnable = BuilderRegistry.get_instance().build(moe_bf16.definition("bf16_small"), packed)
    package = sys.modules[runnable._callable.__module__].__name__.rpartition(".")[0]
    return sys.modules[f"{package}.{module}"]


def close(got, wanted):
    error = (got.float() - wanted.float()).norm() / wanted.float().norm()
    assert torch.isfinite(got).all() and error < 5e-3, error


TILES = [
    (16, 64, 64),
    (64, 128, 64),
    *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((32, 128, 128), (128, 64, 64))),
]


@pytest.mark.parametrize("sizes", TILES, ids=str)
def test_stages_of_gather_scatter(sizes):
    """Each kernel against its plain statement, in both orientations of the product."""
    gemm1, gemm2, summed = (stage("gather_scatter_bf16", m) for m in ("gemm1_swiglu", "gemm2_scatter", "sum_pairs"))
    x, ids, weights, w13, w2 = inputs(45, "bf16_small").values()
    tile = stage("gather_scatter_bf16", "tiles").Tile(*sizes, 8, 1, 4, 3, 4)
    rows, plain = (f(ids, 16, tile.block_m, padded=False) for f in (permute, permute_ref))
    h = gemm1.gemm1_swiglu(x, w13, rows, 4, tile)
    close(h, gemm1.gemm1_swiglu_ref(x, w13, plain, 4))
    y = gemm2.gemm2_scatter(h, w2, weights, rows, tile)
    close(y, gemm2.gemm2_scatter_ref(h, w2, weights, plain))
    got, wanted = torch.full_like(x, torch.nan), torch.empty_like(x)
    summed.sum_pairs(y, got)
    summed.sum_pairs_ref(y, wanted)
    close(got, wanted)


@pytest.mark.parametrize("sizes", TILES, ids=str)
def test_stages_of_align_fused(sizes):
    """Each kernel against its plain statement, in both orientations of the product."""
    names = ("gemm1", "silu_mul", "gemm2", "sum_rows", "tiles")
    gemm1, silu, gemm2, summed, tiles = (stage("align_fused_bf16", module) for module in names)
    x, ids, weights, w13, w2 = inputs(45, "bf16_small").values()
    tile = tiles.Tile(*sizes, 8, 1, 4, 3, 4)
    rows, plain = permute(ids, 16, tile.block_m), permute_ref(ids, 16, tile.block_m)
    used = plain.row_of_pair.flatten().long()
    g = gemm1.gemm1(x, w13, rows, 4, tile)
    close(g[used], gemm1.gemm1_ref(x, w13, plain, 4, tile.block_m)[used])
    h = silu.silu_mul(g, rows, tile.block_m, 4)
    close(h[used], silu.silu_mul_ref(g)[used])
    y = gemm2.gemm2(h, w2, weights, rows, tile)
    close(y[used], gemm2.gemm2_ref(h, w2, weights, plain, tile.block_m)[used])
    got, wanted = torch.full_like(x, torch.nan), torch.empty_like(x)
    summed.sum_rows(y, rows.row_of_pair, got)
    summed.sum_rows_ref(y, plain.row_of_pair, wanted)
    close(got, wanted)


# ---- whole layers ----


@pytest.mark.parametrize("num_tokens", [0, 1, 16, 37, pytest.param(250, marks=pytest.mark.slow)])
def test_layer(layer, num_tokens):
    """The reference's answer at every kind of tile, on FIB's build of what is packed; nothing is left unwritten."""
    arguments = inputs(num_tokens, seed=num_tokens)
    assert_close(run(layer, arguments), moe_bf16.run(**arguments))


def test_all_tokens_on_the_same_experts(layer):
    arguments = inputs(70)
    arguments["expert_ids"] = arguments["expert_ids"][:1].repeat(70, 1)
    assert_close(run(layer, arguments), moe_bf16.run(**arguments))


def test_a_result_is_the_same_in_every_run(layer):
    arguments = inputs(33)
    assert torch.equal(run(layer, arguments), run(layer, arguments))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("hidden_states", lambda x: x.float(), "hidden_states: got torch.float32"),
        ("expert_ids", lambda x: x.long(), "expert_ids: got torch.int64"),
        ("expert_ids", lambda x: x[:, :0], "expert_ids: top_k is 0, want 1 to"),
        ("expert_ids", lambda x: None, "expert_ids: got NoneType, want a tensor of 2 dimensions"),
        ("expert_weights", lambda x: x[:, :1], "expert_weights: got torch.float32 of shape"),
        ("expert_weights", lambda x: x.t().contiguous().t(), "expert_weights: has strides"),
        ("gemm1_weights", lambda x: x[0], "gemm1_weights: got torch.bfloat16 of shape"),
        ("gemm1_weights", lambda x: x[:6], "gemm1_weights: num_experts is 6, want a power of two"),
        ("gemm1_weights", lambda x: x[:, :, :192], "gemm1_weights: hidden_size is 192, want a multiple of 256"),
        ("gemm2_weights", lambda x: x[:, :, :64], "gemm2_weights: got torch.bfloat16 of shape"),
        ("gemm2_weights", lambda x: x.to("meta"), "gemm2_weights: is on meta, want"),
    ],
)
def test_bad_input_is_named(layer, name, change, message):
    """One line: the argument, what came, what is wanted."""
    arguments = inputs(3)
    arguments[name] = change(arguments[name])
    output = torch.empty(inputs(3)["hidden_states"].shape, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError) as caught:
        layer(*arguments.values(), output)
    assert message in str(caught.value) and "\n" not in str(caught.value)


# ---- compiled ahead of time ----


def machine(name, architecture, all_tiles=True):
    group = pytest.mark.xdist_group(f"compile {name} {architecture}")  # one worker compiles for both tests
    return pytest.param(
        (name, architecture, all_tiles),
        id=f"{name}-{architecture}-{'all' if all_tiles else 'few'}",
        marks=[group, pytest.mark.slow] if all_tiles else group,
    )


@pytest.fixture(
    scope="module",
    params=[
        machine("gather_scatter_bf16", "sm_90", False),
        *(machine(name, architecture) for name in STYLES for architecture in ("sm_90", "sm_100")),
    ],
)
def compiled(request, tmp_path_factory):
    """(solution, architecture, what ahead_of_time.py says of each kernel, and whether every tile is used)."""
    name, architecture, all_tiles = request.param
    limits = {int(limit * 16) for limit, *_ in stage(name, "tiles").TABLE[architecture] if limit}
    tokens = sorted({1, 8192} | limits | {limit + 1 for limit in limits}) if all_tiles else (16,)
    folder = tmp_path_factory.mktemp("packed")
    return name, architecture, ahead_of_time.compiled(name, "bf16", architecture, tokens, folder), all_tiles


def test_every_tabled_tile_compiles(compiled):
    """A user would miss: the first call at some token count dies in the compiler, or does not fit the machine."""
    name, architecture, kernels, all_tiles = compiled
    assert not [kernel for kernel in kernels if kernel["shared"] > ahead_of_time.SHARED_MEMORY[architecture]]
    if not all_tiles:
        assert {kernel["kernel"] for kernel in kernels} >= GEMMS & set(manifest.read_manifest(name).stages)
        return
    assert {kernel["kernel"] for kernel in kernels} == set(manifest.read_manifest(name).stages)
    built = {
        (k["constants"]["BLOCK_M"], k["constants"]["BLOCK_N"], k["constants"]["BLOCK_K"], k["num_warps"])
        for k in kernels
        if k["kernel"] in GEMMS
    }
    tabled = {
        (t.block_m, t.block_n, t.block_k, t.num_warps)
        for _, *tiles in stage(name, "tiles").TABLE[architecture]
        for t in tiles
    }
    assert tabled <= built


def test_hopper_kernels_use_its_matrix_units_and_spill_nothing(compiled):
    """A user would miss: a kernel several times slower than it should be."""
    _, architecture, kernels, _ = compiled
    if architecture != "sm_90":
        pytest.skip("says nothing about SM100, whose matrix instructions have other names")
    slow = [k for k in kernels if k["kernel"] in GEMMS and not (k["wgmma"] and k["bulk_tensor_copy"])]
    spilled = [k for k in kernels if k["stack"]]
    assert not slow and not spilled, (slow, spilled)


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [2, 64, 129, 256, 511, 1024, 1025, 2048, 4097])
def test_layer_at_full_width(layer, num_tokens):
    """Every tile of the table, one program that sorts and many, and sizes that are no powers of two."""
    arguments = inputs(num_tokens, seed=num_tokens)
    assert_close(run(layer, arguments), moe_bf16.run(**arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [64, 3000])
def test_all_tokens_on_the_same_experts_at_full_width(layer, num_tokens):
    arguments = inputs(num_tokens)
    arguments["expert_ids"] = arguments["expert_ids"][:1].repeat(num_tokens, 1)
    assert_close(run(layer, arguments), moe_bf16.run(**arguments))


@pytest.mark.gpu
def test_the_host_never_waits_for_the_device(layer):
    """A user would miss: a serving engine that stands still while the layer runs."""
    arguments = inputs(300)
    run(layer, arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = run(layer, arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_close(output, moe_bf16.run(**arguments))


@pytest.mark.gpu
def test_in_a_cuda_graph(layer):
    """Captured once, replayed on other tokens and another routing."""
    arguments, other = inputs(100), inputs(100, seed=1)
    output = torch.empty_like(arguments["hidden_states"])
    run(layer, arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(*arguments.values(), output)
    for name in ("hidden_states", "expert_ids", "expert_weights"):
        arguments[name].copy_(other[name])
    output.fill_(torch.nan)
    graph.replay()
    assert_close(output, moe_bf16.run(**arguments))


@pytest.mark.gpu
def test_on_a_stream_of_the_callers(layer):
    """A user would miss: a launch on the default stream, which reads inputs that are not there yet."""
    arguments, late = inputs(100), inputs(100, seed=2)["hidden_states"]
    run(layer, arguments)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        arguments["hidden_states"].copy_(late)
        output = run(layer, arguments)
    torch.cuda.current_stream().wait_stream(stream)
    assert_close(output, moe_bf16.run(**arguments))
