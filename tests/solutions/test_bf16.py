"""The bf16 layer: both styles of Triton kernels, and torch's grouped GEMM.

Without a GPU the kernels run through Triton's interpreter at the small geometry; tests marked `gpu`
run the full one.
"""

from itertools import product

import ahead_of_time
import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import DEVICE, arguments, wanted
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import moe_bf16
from moebench.packing import eligibility, manifest, pack

from solutions.common.triton.bf16.gemm1_bf16 import gemm1_bf16, gemm1_bf16_ref
from solutions.common.triton.bf16.gemm2_bf16 import gemm2_bf16, gemm2_bf16_ref
from solutions.common.triton.bf16.sum_rows import sum_rows, sum_rows_ref
from solutions.common.triton.expert_tiles import Tile
from solutions.common.triton.permute import permute, permute_ref

HERE = "bf16" if DEVICE == "cuda" else "bf16_small"
SOLUTIONS = ("align_fused_bf16", "gather_scatter_bf16", "torch_grouped_bf16")
STYLES = ("align_fused_bf16", "gather_scatter_bf16")
GEMMS = {"gemm1_bf16_kernel", "gemm2_bf16_kernel"}


@pytest.fixture(params=SOLUTIONS)
def layer(request):
    """The runnable that FIB builds of a packed solution, at the geometry of this machine."""
    packed = pack.pack(request.param)[HERE]
    if reason := eligibility.why_skipped(packed, eligibility.here()):
        pytest.skip(f"{request.param} {reason}")
    return BuilderRegistry.get_instance().build(moe_bf16.definition(HERE), packed)


def run(layer, given):
    """A fresh output, which held NaN before the call."""
    output = torch.full_like(given["output"], torch.nan)
    layer(*(given | {"output": output}).values())
    return output


def assert_close(output, given):
    """Inside FIB's relaxed and contest tolerances, and as exact as bf16 intermediates let it be."""
    right = wanted(HERE, given)
    assert torch.isfinite(output).all()
    ratios = matched_ratios(output, right)
    for name in ("relaxed", "contest"):
        assert ratios[name] >= TOLERANCES[name].ratio, (name, ratios)
    assert (
        not right.numel() or (output.float() - right.float()).norm() / right.float().norm() < 8e-3
    )


# ---- stages ----


def close(got, plain):
    error = (got.float() - plain.float()).norm() / plain.float().norm()
    assert torch.isfinite(got).all() and error < 5e-3, error


TILES = [
    (16, 64, 64),
    (64, 128, 64),
    *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((32, 128, 128), (128, 64, 64))),
]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sizes", TILES, ids=str)
def test_stages(packed_module, sizes, padded):
    """Each kernel against its plain statement, in both orientations of the GEMM, as the two
    solutions use them.
    """
    x, ids, weights, w13, w2, output = arguments("bf16_small", 45).values()
    tile = Tile(*sizes, 8, 1, 4, 3, 4)
    rows, plain = (f(ids, 16, tile.block_m, padded) for f in (permute, permute_ref))
    used = plain.row_of_pair.flatten().long()
    h = gemm1_bf16(x, w13, rows, tile, swiglu=not padded)
    close(h[used], gemm1_bf16_ref(x, w13, plain, tile.block_m, swiglu=not padded)[used])
    if padded:
        silu = packed_module("align_fused_bf16", "silu_mul", "bf16_small")
        g, h = h, silu.silu_mul(h, rows, tile.block_m, 4)
        close(h[used], silu.silu_mul_ref(g)[used])
    y = gemm2_bf16(h, w2, weights, rows, tile)
    right = gemm2_bf16_ref(h, w2, weights, plain, tile.block_m)
    close(*(part[used] if padded else part for part in (y, right)))
    sum_rows(y, rows.row_of_pair if padded else None, output)
    sum_rows_ref(y, plain.row_of_pair if padded else None, right := torch.empty_like(x))
    close(output, right)


# ---- whole layers ----


@pytest.mark.parametrize("num_tokens", [0, 1, 16, 37, pytest.param(250, marks=pytest.mark.slow)])
def test_layer(layer, num_tokens):
    """The reference's answer at every kind of tile, on FIB's build of what is packed; nothing is
    left unwritten.
    """
    given = arguments(HERE, num_tokens, seed=num_tokens)
    output = run(layer, given)
    assert_close(output, given)
    assert torch.equal(run(layer, given), output)


@pytest.mark.parametrize("num_tokens", [70] if DEVICE == "cpu" else [64, 3000])
def test_all_tokens_on_the_same_experts(layer, num_tokens):
    given = arguments(HERE, num_tokens)
    given["expert_ids"] = given["expert_ids"][:1].repeat(num_tokens, 1)
    assert_close(run(layer, given), given)


BAD = {
    "hidden_states": [lambda x: x.float()],
    "expert_ids": [lambda x: x.long(), lambda x: x[:, :0], lambda x: None],
    "expert_weights": [lambda x: x[:, :1], lambda x: x.t().contiguous().t()],
    "gemm1_weights": [lambda x: x[0], lambda x: x[:6], lambda x: x[:, :, :192]],
    "gemm2_weights": [lambda x: x[:, :, :64], lambda x: x.to("meta")],
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, changes in BAD.items() for change in changes]
)
def test_bad_input_is_named(layer, name, change):
    """One line, which begins with the argument."""
    given = arguments(HERE, 3)
    with pytest.raises(ValueError, match=rf"^{name}: .*\Z"):
        layer(*(given | {name: change(given[name])}).values())


# ---- compiled ahead of time ----


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture"), product(STYLES, ("sm_90", "sm_100")))
def test_every_tabled_tile_compiles(packed_module, name, architecture, tmp_path):
    """The first call at some token count dies in the compiler, or does not fit
    the machine.

    Also a kernel several times slower than it should be, because it spills or leaves the newest
    tensor cores.
    """
    table = packed_module(name, "tiles").TABLE[architecture]
    limits = {int(limit * 16) for limit, *_ in table if limit}
    tokens = sorted({1, 8192} | limits | {limit + 1 for limit in limits})
    kernels = ahead_of_time.compiled(name, "bf16", architecture, tokens, tmp_path)
    assert not [k for k in kernels if k["shared"] > ahead_of_time.SHARED_MEMORY[architecture]]
    gemms, stages = (
        [k for k in kernels if k["kernel"] in GEMMS],
        set(manifest.read_manifest(name).stages),
    )
    tensor_cores = {"sm_90": "wgmma", "sm_100": "tcgen05"}[architecture]
    assert not [k for k in kernels if k["stack"]]
    assert not [k for k in gemms if not (k[tensor_cores] and k["bulk_tensor_copy"])]
    assert {k["kernel"] for k in kernels} == stages
    sizes = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
    built = {(*(k["constants"][size] for size in sizes), k["num_warps"]) for k in gemms}
    assert {
        (t.block_m, t.block_n, t.block_k, t.num_warps) for _, *tiles in table for t in tiles
    } <= built


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [2, 64, 129, 256, 511, 1024, 1025, 2048, 4097])
def test_layer_at_full_width(layer, num_tokens):
    """Every tile of the table, one program that sorts and many, and sizes that are no powers of
    two.
    """
    given = arguments(HERE, num_tokens, seed=num_tokens)
    assert_close(run(layer, given), given)


@pytest.mark.gpu
def test_the_host_never_waits_for_the_device(layer):
    """A serving engine that stands still while the layer runs."""
    given = arguments(HERE, 300)
    run(layer, given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = run(layer, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_close(output, given)


@pytest.mark.gpu
def test_in_a_cuda_graph(layer):
    """Captured once, replayed on other tokens and another routing."""
    given, other = arguments(HERE, 100), arguments(HERE, 100, seed=1)
    run(layer, given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(*given.values())
    for name in ("hidden_states", "expert_ids", "expert_weights"):
        given[name].copy_(other[name])
    given["output"].fill_(torch.nan)
    graph.replay()
    assert_close(given["output"], given)


@pytest.mark.gpu
def test_on_a_stream_of_the_callers(layer):
    """A launch on the default stream, which reads inputs that are not there
    yet.
    """
    given, late = arguments(HERE, 100), arguments(HERE, 100, seed=2)["hidden_states"]
    run(layer, given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        given["hidden_states"].copy_(late)
        output = run(layer, given)
    torch.cuda.current_stream().wait_stream(stream)
    assert_close(output, given)
