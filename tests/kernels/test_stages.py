"""Each stage against its plain statement, at sizes that hypothesis draws.

On a GPU the same tests run at the full widths; the `cpu` cases then step aside, because Triton
compiles for the one or the other in a process.
"""

from importlib import import_module, reload
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from moebench.operators import swiglu as activations

from solutions.common.host.problem import (
    KEPT_GROUPS,
    NUM_EXPERTS,
    NUM_GROUPS,
    NUM_LOCAL_EXPERTS,
    TOP_K,
)
from solutions.common.triton.combine import combine, combine_ref
from solutions.common.triton.gemm1 import gemm1, gemm1_ref
from solutions.common.triton.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_ref
from solutions.common.triton.gemm2 import gemm2, gemm2_ref
from solutions.common.triton.permute import permute_ref
from solutions.common.triton.quantise_tokens import quantise_tokens, quantise_tokens_ref
from solutions.common.triton.route import route, route_ref
from solutions.common.triton.swiglu import swiglu
from solutions.common.triton.swiglu_quant import swiglu_quant, swiglu_quant_ref
from solutions.common.triton.tile_order import tile_order
from solutions.common.triton.tiles import Tile

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

EXPERTS, LOCAL = NUM_EXPERTS, NUM_LOCAL_EXPERTS
BF16_STEP = 2.0**-7  # between neighbours, relative to the smaller one
FP8_STEP = 2.0**-3
SMALLEST_FP8 = 2.0**-9

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton compiles for the GPU in this process"
)
devices = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = [
    pytest.mark.parametrize("device", devices),
    pytest.mark.usefixtures("poisoned_scratch"),
]

FEW, SMALL = (
    3,
    {"num_tokens": st.integers(1, 4), "block_m": st.just(16)},
)  # what the interpreter does in seconds
TOKENS = st.integers(1, 40)
SEEDS = st.integers(0, 2**32 - 1)
TILES = st.builds(
    Tile,
    block_m=st.sampled_from([16, 32, 64]),
    block_n=st.just(128),
    group=st.sampled_from([1, 3, 8]),
    per_sm=st.just(1),
    num_warps=st.just(4),
    num_stages=st.just(3),
    programs=st.sampled_from([1, 3, 8, 132]),
)


def drawn(examples, *explicit, **strategies):
    """Values from `strategies`, the same on every machine: `examples` in the slow set, else FEW
    small ones.

    explicit: dicts of values that are tried in either case.
    """

    def decorate(test):
        @pytest.mark.parametrize("examples", [FEW, pytest.param(examples, marks=pytest.mark.slow)])
        def run(device, examples):
            def body(**values):
                test(device, **values)

            for values in explicit:
                body = hypothesis.example(**values)(body)
            limits = hypothesis.settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                # shrinking takes minutes and tells little
                phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
                suppress_health_check=[hypothesis.HealthCheck.too_slow],
            )
            small = (
                {name: SMALL[name] for name in strategies.keys() & SMALL} if examples == FEW else {}
            )
            limits(hypothesis.given(**strategies | small)(body))()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


def widths(device):
    """(hidden sizes, intermediate sizes) to draw from."""
    return ([256, 384, 512], [128, 256]) if device == "cpu" else ([7168], [2048])


def slices_of(hidden):
    """Numbers of column slices, more than one, each a multiple of 128 wide."""
    return st.sampled_from([n for n in (2, 3, 4) if hidden // 128 % n == 0])


def random(seed, device):
    """Functions that draw fp8 values and fp32 scales (of either sign, some zero) from one seed."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    def fp8(*shape):
        return normal(*shape).to(torch.float8_e4m3fn)

    def scales(*shape):
        zero = torch.rand(shape, generator=generator, device=device) < 0.05
        return normal(*shape).masked_fill(zero, 0)

    return normal, fp8, scales


def random_experts(num_tokens, seed, device):
    """[T, 8] int32: as `route` gives them, no expert twice in a row, most of them not local."""
    generator = torch.Generator().manual_seed(seed)
    offset = int(torch.randint(0, EXPERTS - 63, (), generator=generator))
    chosen = torch.rand((num_tokens, 64), generator=generator).argsort(1)[:, :TOP_K]
    local = (chosen + offset) % 64  # 64 candidates, so that about half of them are local
    return torch.where(local < LOCAL, local, -1).to(torch.int32).to(device)


def used_rows(permutation, block_m):
    """Rows that hold a token; all others are padding or undefined."""
    pair = permutation.pair_of_row[: int(permutation.num_tiles) * block_m]
    return (pair >= 0).nonzero().flatten()


def assert_within(actual, wanted, relative, absolute):
    """Every element within relative x |wanted| + absolute; finite, so NaN never passes."""
    actual, wanted = actual.float(), wanted.float()
    assert torch.isfinite(actual).all()
    excess = (actual - wanted).abs() - relative * wanted.abs() - absolute
    assert excess.numel() == 0 or excess.max() <= 0, f"over the tolerance by {excess.max():g}"


def fp32_noise(device, wanted):
    """What sums in another order, and on a GPU the tensor cores' short sums, may differ by."""
    size = wanted.float().square().mean().sqrt() if wanted.numel() else 0
    return (1e-5 if device == "cpu" else 5e-3) * size


# ---- route ----


def margin(biased):
    """By how much the closest call in each token's choice was decided."""
    groups = biased.unflatten(1, (NUM_GROUPS, -1))
    score = groups.topk(2).values.sum(-1)
    order = score.sort(descending=True).values
    kept = score >= order[:, KEPT_GROUPS - 1 : KEPT_GROUPS]
    inside = groups.masked_fill(~kept[..., None], -torch.inf).flatten(1).topk(TOP_K + 1).values
    between_groups = order[:, KEPT_GROUPS - 1] - order[:, KEPT_GROUPS]
    return torch.minimum(between_groups, -inside.diff().max(1).values)


def clear_logits(num_tokens, seed, level):
    """Logits about `level` and a bias, such that no choice hangs on rounding."""
    normal, _, _ = random(seed, "cpu")
    bias = (0.1 * normal(EXPERTS)).bfloat16()
    logits = level + normal(num_tokens, EXPERTS)
    while True:
        close = margin(torch.sigmoid(logits) + bias.float()) < 1e-5
        if level < -10:  # the bias alone decides, for every token alike
            return (logits, bias) if not close.any() else clear_logits(num_tokens, seed + 1, level)
        if not close.any():
            return logits, bias
        logits[close] = level + normal(int(close.sum()), EXPERTS)


@drawn(
    12,
    dict(num_tokens=3, seed=1, offset=EXPERTS - LOCAL, level=-60.0, factor=2.5),
    num_tokens=TOKENS,
    seed=SEEDS,
    offset=st.integers(0, EXPERTS - LOCAL),
    level=st.sampled_from([-100.0, -60.0, -30.0, -2.0, 0.0, 4.0]),
    factor=st.sampled_from([1.0, 2.5]),
)
def test_route(device, num_tokens, seed, offset, level, factor):
    """Tokens sent to other experts, or weighed otherwise, than the model says.

    At level -60 the scores are so small that the 1e-20 in the normalisation decides the weights.
    """
    logits, bias = (t.to(device) for t in clear_logits(num_tokens, seed, level))
    expert, weight = route(logits, bias, offset, factor, LOCAL)
    wanted_expert, wanted_weight = route_ref(logits, bias, offset, factor, LOCAL)
    assert expert.dtype == torch.int32
    assert torch.equal(expert, wanted_expert)
    # below 1e-37 sigmoid's own fp32 statements begin to differ
    assert_within(weight, wanted_weight, 1e-4, 1e-15)


@pytest.mark.parametrize(
    "sizes", [(160, 20, 8, 8, 3), (288, 36, 6, 1, 1), (192, 5, 16, 6, 2), (1024, 1, 1, 2, 1)]
)
def test_route_of_other_layers(device, sizes):
    """An expert that a padded group or row of lanes hides, or one that does not
    exist.
    """
    route_module = import_module("solutions.common.triton.route")
    names = ("NUM_EXPERTS", "NUM_LOCAL_EXPERTS", "TOP_K", "NUM_GROUPS", "KEPT_GROUPS")
    normal, _, _ = random(1, device)
    with mock.patch.multiple(route_module.problem, **dict(zip(names, sizes, strict=True))):
        module = reload(route_module)
        given = (
            normal(9, sizes[0]),
            (0.1 * normal(sizes[0])).bfloat16(),
            sizes[0] - sizes[1],
            2.5,
            sizes[1],
        )
        (expert, weight), (wanted_expert, wanted_weight) = (
            module.route(*given),
            module.route_ref(*given),
        )
    reload(route_module)
    assert torch.equal(expert, wanted_expert)
    assert_within(weight, wanted_weight, 1e-4, 1e-15)


# ---- the order of tiles ----


@triton.jit
def count_visits_kernel(visits_ptr, num_m, num_n, GROUP: tl.constexpr):
    m, n = tile_order(tl.program_id(0), num_m, num_n, GROUP)
    tl.atomic_add(visits_ptr + m * num_n + n, 1)


@drawn(8, num_m=st.integers(1, 20), num_n=st.integers(1, 6), group=st.sampled_from([1, 3, 8, 16]))
def test_every_tile_is_visited_once(device, num_m, num_n, group):
    """A tile computed twice (time) or never (stale memory in the result)."""
    visits = torch.zeros((num_m, num_n), dtype=torch.int32, device=device)
    count_visits_kernel[(num_m * num_n,)](visits, num_m, num_n, GROUP=group)
    assert (visits == 1).all()


# ---- gemm1, swiglu_quant and both in one ----


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, h_ptr):
    at = tl.arange(0, 256)
    tl.store(h_ptr + at, swiglu(tl.load(gate_ptr + at), tl.load(up_ptr + at)))


def gemm1_inputs(data, device, num_tokens, seed, block_m):
    hidden_sizes, inter_sizes = widths(device)
    hidden = data.draw(st.sampled_from(hidden_sizes))
    inter = data.draw(st.sampled_from(inter_sizes))
    _, fp8, scales = random(seed, device)
    x, x_scale = fp8(num_tokens, hidden), scales(hidden // 128, num_tokens)
    w, w_scale = fp8(LOCAL, 2 * inter, hidden), scales(LOCAL, 2 * inter // 128, hidden // 128)
    # h grows with the cube of these: keep silu from being all zero or all linear
    w_scale *= 1 / hidden**0.5
    permutation = permute_ref(random_experts(num_tokens, seed, device), LOCAL, block_m)
    return (x, x_scale, w, w_scale), permutation


@drawn(5, data=st.data(), num_tokens=TOKENS, seed=SEEDS, tile=TILES)
def test_gemm1(device, data, num_tokens, seed, tile):
    """A wrong product for some expert, tile or number of programs."""
    operands, permutation = gemm1_inputs(data, device, num_tokens, seed, tile.block_m)
    wanted = gemm1_ref(*operands, permutation, tile.block_m)
    got = gemm1(*operands, permutation, tile)
    rows = used_rows(permutation, tile.block_m)
    assert_within(got[rows], wanted[rows], BF16_STEP, fp32_noise(device, wanted[rows]))


def check_fp8(device, got, wanted, noise):
    """Dequantised values one fp8 step apart at most; most are no step apart."""
    (q, scale), (wanted_q, wanted_scale) = got, wanted
    assert_within(scale, wanted_scale, 1e-5 if noise == 0 or device == "cpu" else 2e-2, 0)
    wide = wanted_scale.repeat_interleave(128, 1)
    h, wanted_h = q.float() * scale.repeat_interleave(128, 1), wanted_q.float() * wide
    assert_within(h, wanted_h, FP8_STEP, wide * SMALLEST_FP8 + noise)
    if q.numel():
        same = (q.view(torch.uint8) == wanted_q.view(torch.uint8)).float().mean()
        assert same > (0.98 if noise == 0 or device == "cpu" else 0.8)


@drawn(5, data=st.data(), num_tokens=TOKENS, seed=SEEDS, tile=TILES)
def test_gemm1_swiglu_quant(device, data, num_tokens, seed, tile):
    """Up and gate swapped, a scale of another row, a tile not computed."""
    operands, permutation = gemm1_inputs(data, device, num_tokens, seed, tile.block_m)
    wanted = gemm1_swiglu_quant_ref(*operands, permutation, tile.block_m)
    got = gemm1_swiglu_quant(*operands, permutation, tile)
    rows = used_rows(permutation, tile.block_m)
    h = wanted[0][rows].float() * wanted[1][rows].repeat_interleave(128, 1)
    noise = fp32_noise(device, h)
    check_fp8(device, [t[rows] for t in got], [t[rows] for t in wanted], noise)


@drawn(4, data=st.data(), num_tokens=TOKENS, seed=SEEDS, tile=TILES, fused=st.booleans())
def test_gate_first_and_scales_row_by_row(device, data, num_tokens, seed, tile, fused):
    """Another answer for the same numbers in the order that engines have
    them.
    """
    operands, permutation = gemm1_inputs(data, device, num_tokens, seed, tile.block_m)
    stages = (gemm1_swiglu_quant, gemm1_swiglu_quant_ref) if fused else (gemm1, gemm1_ref)

    def results(x, x_scale, w, w_scale):
        found = [stages[0](x, x_scale, w, w_scale, permutation, tile)]
        found.append(stages[1](x, x_scale, w, w_scale, permutation, tile.block_m))
        return [part for result in found for part in (result if fused else [result])]

    wanted = results(*operands)
    x, x_scale, *experts = operands
    halves = [
        torch.cat(part.view(torch.uint8).chunk(2, 1)[::-1], 1).view(part.dtype) for part in experts
    ]
    with mock.patch.multiple(
        import_module("solutions.common.triton.gemm1"), GATE_FIRST=True, SCALES_ROW_MAJOR=True
    ):
        module = import_module("solutions.common.triton.gemm1_swiglu_quant")
        with mock.patch.multiple(module, GATE_FIRST=True, SCALES_ROW_MAJOR=True):
            got = results(x, x_scale.t().contiguous(), *halves)
    rows = used_rows(permutation, tile.block_m)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one[rows].float(), other[rows].float())


@drawn(
    6, data=st.data(), num_tokens=TOKENS, seed=SEEDS, size=st.sampled_from([1e-30, 1e-3, 1.0, 1e4])
)
def test_quantise_tokens(device, data, num_tokens, seed, size):
    """NaN for a token of zeros, or a scale that belongs to other columns."""
    hidden = data.draw(st.sampled_from([*widths(device)[0], 1024]))  # 1024: eight groups a program
    normal, _, _ = random(seed, device)
    x = (size * normal(num_tokens, hidden)).bfloat16()
    x[::3, :128] = 0
    x[1::3] *= 100
    for got, wanted in zip(quantise_tokens(x), quantise_tokens_ref(x), strict=True):
        assert torch.equal(got.float(), wanted.float())


@drawn(
    6,
    data=st.data(),
    num_tokens=TOKENS,
    seed=SEEDS,
    block_m=st.sampled_from([16, 32, 64]),
    programs=st.sampled_from([1, 5, 1000]),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_swiglu_quant(device, data, num_tokens, seed, block_m, programs, size):
    """An activation that overflows, or divides by a zero scale."""
    inter = data.draw(st.sampled_from([*widths(device)[1], 1024]))  # 1024: eight groups a program
    normal, _, _ = random(seed, device)
    permutation = permute_ref(random_experts(num_tokens, seed, device), LOCAL, block_m)
    g = (size * normal(len(permutation.pair_of_row), 2 * inter)).bfloat16()
    g[::3, :128] = 0  # a quantisation group of zeros
    g[1::7] *= 100
    rows = used_rows(permutation, block_m)
    got = swiglu_quant(g, permutation, block_m, programs)
    check_fp8(device, [t[rows] for t in got], [t[rows] for t in swiglu_quant_ref(g)], noise=0)


@pytest.mark.parametrize(
    "of", [("silu", 10), ("silu", 0.5), ("swigluoai", 7), ("swiglustep", 7)], ids=str
)
def test_clamped_swiglu(device, of, monkeypatch):
    """A clamp of the other half, of one side, or one that turns NaN into a
    number.
    """
    if device == "cuda":
        pytest.skip("the definition's activation is compiled in")
    sizes = {"activation": of[0], "swiglu_limit": of[1]}
    module = import_module("solutions.common.triton.swiglu")
    for name, value in activations.constants(sizes).items():
        monkeypatch.setattr(module.problem, name.upper(), value)
        monkeypatch.setattr(module, name.upper().removeprefix("SWIGLU_"), tl.constexpr(value))
    monkeypatch.setattr(activations, "LIMIT", float(of[1]))
    up, gate = 10 * torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    gate[:2], up[2:4] = torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, -torch.inf])
    found = torch.empty_like(up)
    swiglu_kernel[(1,)](gate, up, found)
    for other in (module.swiglu_ref(gate, up), activations.function_of(sizes)(gate, up)):
        torch.testing.assert_close(found, other, rtol=1e-5, atol=1e-5, equal_nan=True)


# ---- gemm2 ----


@drawn(5, data=st.data(), num_tokens=TOKENS, seed=SEEDS, tile=TILES)
def test_gemm2_in_column_slices(device, data, num_tokens, seed, tile):
    """Wrong columns from the second slice on, as only large batches use them."""
    hidden_sizes, inter_sizes = widths(device)
    hidden = data.draw(st.sampled_from(hidden_sizes))
    inter = data.draw(st.sampled_from(inter_sizes))
    _, fp8, scales = random(seed, device)
    permutation = permute_ref(random_experts(num_tokens, seed, device), LOCAL, tile.block_m)
    num_rows = len(permutation.pair_of_row)
    h, h_scale = fp8(num_rows, inter), scales(num_rows, inter // 128)
    w, w_scale = fp8(LOCAL, hidden, inter), scales(LOCAL, hidden // 128, inter // 128)
    width = hidden // data.draw(slices_of(hidden))
    rows = used_rows(permutation, tile.block_m)
    for first in range(0, hidden, width):
        y = torch.full((num_rows, width), torch.nan, dtype=torch.bfloat16, device=device)
        gemm2(h, h_scale, w, w_scale, permutation, first, y, tile)
        wanted = gemm2_ref(h, h_scale, w, w_scale, permutation, tile.block_m, first, width)
        assert_within(y[rows], wanted[rows], BF16_STEP, fp32_noise(device, wanted[rows]))
        unused = y[int(permutation.num_tiles) * tile.block_m :]
        assert unused.isnan().all(), "a tile without rows was computed"


# ---- combine ----


@drawn(
    8,
    data=st.data(),
    num_tokens=st.sampled_from([1, 7, 40, 64, 65, 90]),
    seed=SEEDS,
    branch=st.booleans(),
)
def test_combine(device, data, num_tokens, seed, branch):
    """NaN or stale numbers for tokens that have no expert on this rank.

    Scratch and output hold NaN wherever no row was computed; 65 tokens change the block size, and
    take the branches.
    """
    hidden = data.draw(st.sampled_from(widths(device)[0]))
    width = hidden // data.draw(slices_of(hidden))
    normal, _, _ = random(seed, device)
    expert = random_experts(num_tokens, seed, device)
    expert[::5] = -1  # at least token 0 has no local expert
    permutation = permute_ref(expert, LOCAL, 16)
    weight = normal(num_tokens, TOP_K)
    output = torch.full((num_tokens, hidden), torch.nan, dtype=torch.bfloat16, device=device)
    wanted = output.clone()
    for first in range(0, hidden, width):
        y = torch.full((len(permutation.pair_of_row), width), torch.nan, device=device)
        y[used_rows(permutation, 16)] = normal(len(used_rows(permutation, 16)), width)
        y = y.bfloat16()
        before = output[:, first + width :].clone()
        combine(y, permutation.row_of_pair, weight, output, first, branch)
        combine_ref(y, permutation.row_of_pair, weight, wanted, first)
        assert before.isnan().all() and output[:, first + width :].isnan().all()
    assert_within(output, wanted, BF16_STEP, 1e-6)
    none = (permutation.row_of_pair < 0).all(1)
    assert none[0] and (output[none] == 0).all()
