"""Each stage against its plain statement, at sizes that are drawn from a seed.

On a GPU the same tests run at the full widths; the `cpu` cases then step aside, because Triton
compiles for the one or the other in a process.
"""

import random
from functools import cached_property
from importlib import import_module, reload
from unittest import mock

import pytest
import stage_inputs
import torch
import triton
import triton.language as tl
from every_solution import each_device, slow
from layer_inputs import halves_swapped
from moebench.operators.fp8 import swiglu as activations
from permuted_rows import rows_of_tokens
from random_values import Draw

from solutions.common.host.problem import (
    NUM_EXPERTS,
    NUM_LOCAL_EXPERTS,
    TOP_K,
)
from solutions.common.triton.gemms.gemm1 import gemm1, gemm1_ref
from solutions.common.triton.gemms.gemm1_swiglu_quant import (
    gemm1_swiglu_quant,
    gemm1_swiglu_quant_ref,
)
from solutions.common.triton.gemms.gemm2 import gemm2, gemm2_ref
from solutions.common.triton.gemms.tiles import Tile
from solutions.common.triton.rows.combine import combine, combine_ref
from solutions.common.triton.rows.dequantise import dequantise, dequantise_ref
from solutions.common.triton.rows.permute import permute_ref
from solutions.common.triton.rows.quantise_tokens import (
    quantise_tokens,
    quantise_tokens_ref,
)
from solutions.common.triton.rows.swiglu import swiglu
from solutions.common.triton.rows.swiglu_quant import swiglu_quant, swiglu_quant_ref

BF16_STEP = 2.0**-7  # between neighbours, relative to the smaller one
FP8_STEP = 2.0**-3
SMALLEST_FP8 = 2.0**-9
HIDDEN_SIZES = {"cpu": [256, 384, 512], "cuda": [7168]}
INTERMEDIATE_SIZES = {"cpu": [128, 256], "cuda": [2048]}
ROUTE = "solutions.common.triton.rows.route"
QUICK = 2  # seeds: with a few tokens, which the interpreter does in seconds

pytestmark = [each_device, pytest.mark.usefixtures("poisoned_scratch")]


def cases(count):
    """Parametrise a test with so many Cases."""
    seeds = range(count)
    rest = [slow(seed) for seed in seeds[QUICK:]]
    return pytest.mark.parametrize("seed", [*seeds[:QUICK], *rest])


def cases_with(name, *values):
    """Parametrise a test with a Case of its own for each value."""
    parameters = []
    for seed, value in enumerate(values):
        parameters.append((seed, value) if seed < QUICK else slow(seed, value))
    return pytest.mark.parametrize(("seed", name), parameters)


class Case(Draw):
    """Sizes and values drawn from a seed."""

    def __init__(self, device, seed):
        super().__init__(device, seed)
        choose = random.Random(seed)
        self.choice = choose.choice
        self.num_tokens = choose.randint(1, 4 if seed < QUICK else 40)
        self.hidden = choose.choice(HIDDEN_SIZES[device])
        self.inter = choose.choice(INTERMEDIATE_SIZES[device])
        self.tile = Tile(
            block_m=choose.choice([16, 32, 64]),
            block_n=128,
            group=choose.choice([1, 3, 8]),
            per_sm=1,
            num_warps=4,
            num_stages=3,
            programs=choose.choice([1, 3, 8, 132]),
        )

    def scales(self, *shape):
        """Return scales of either sign, some zero."""
        is_zero = self.uniform(*shape) < 0.05
        scales = self.normal(*shape)
        return scales.masked_fill(is_zero, 0)

    def weights(self, columns, depth):
        """Return weights of each expert and their scales."""
        w = self.fp8(NUM_LOCAL_EXPERTS, columns, depth)
        w_scale = self.scales(NUM_LOCAL_EXPERTS, columns // 128, depth // 128)
        return w, w_scale

    def experts(self):
        """Return [T, top_k] int32 as `route` does: no expert twice for a token, half not local."""
        order = self.order(self.num_tokens, 2 * NUM_LOCAL_EXPERTS)
        expert = order[:, :TOP_K].to(torch.int32)
        is_local = expert < NUM_LOCAL_EXPERTS
        return expert.where(is_local, -1)

    @cached_property
    def permutation(self):
        return permute_ref(self.experts(), NUM_LOCAL_EXPERTS, self.tile.block_m)

    @cached_property
    def used_rows(self):
        """Rows that hold a token; all others are padding or undefined."""
        return rows_of_tokens(self.permutation)

    def gemm1_operands(self):
        """Return x, x_scale, w13 and w13_scale."""
        hidden = self.hidden
        x = self.fp8(self.num_tokens, hidden)
        x_scale = self.scales(hidden // 128, self.num_tokens)
        w, w_scale = self.weights(2 * self.inter, hidden)

        # h grows with the cube of these: keep silu from being all zero or all linear
        w_scale = w_scale / hidden**0.5
        return x, x_scale, w, w_scale

    def slice_width(self):
        """Return the width of one of several column slices, a multiple of 128."""
        blocks = self.hidden // 128
        divisors = [n for n in (2, 3, 4) if blocks % n == 0]
        return self.hidden // self.choice(divisors)


def assert_within(output, expected, relative, absolute):
    """Check every element: within relative x |expected| + absolute, and finite."""
    output = output.float()
    expected = expected.float()
    error = (output - expected).abs()
    limit = relative * expected.abs() + absolute

    assert output.isfinite().all()
    assert (error <= limit).all()


def fp32_noise(device, expected):
    """Return by how much sums in another order, and on a GPU the tensor cores' short sums, may
    differ.
    """
    if not expected.numel():
        return 0
    share = 1e-5 if device == "cpu" else 5e-3
    root_mean_square = expected.float().square().mean().sqrt()
    return share * root_mean_square


def dequantised(values, scale):
    return values.float() * scale.repeat_interleave(128, 1)


def assert_fp8_within(device, output, expected, noise):
    """Check values and scales: dequantised one fp8 step apart at most; most are no step apart."""
    values, scale = output
    expected_values, expected_scale = expected
    scale_error = 2e-2
    share_of_same = 0.8
    if noise == 0 or device == "cpu":
        scale_error = 1e-5
        share_of_same = 0.98

    assert_within(scale, expected_scale, scale_error, 0)

    smallest = torch.full_like(expected_values, SMALLEST_FP8)
    smallest_h = dequantised(smallest, expected_scale)
    h = dequantised(values, scale)
    expected_h = dequantised(expected_values, expected_scale)
    assert_within(h, expected_h, FP8_STEP, smallest_h + noise)

    if values.numel():
        same = values.view(torch.uint8) == expected_values.view(torch.uint8)
        assert same.float().mean() > share_of_same


# ---- route ----


def random_bias(case, num_experts):
    bias = 0.1 * case.normal(num_experts)
    return bias.bfloat16()


def clear_logits(case, level):
    """Return logits about `level` and a bias, such that no choice hangs on rounding."""
    layer = stage_inputs.sizes("full")
    bias = random_bias(case, NUM_EXPERTS)
    logits = level + case.normal(case.num_tokens, NUM_EXPERTS)
    while True:
        is_close = ~stage_inputs.is_clear(layer, logits, bias, in_order=True)
        num_close = int(is_close.sum())
        if num_close == 0:
            return logits, bias
        if level < -10:  # the bias alone decides, for every token alike
            bias = random_bias(case, NUM_EXPERTS)
        logits[is_close] = level + case.normal(num_close, NUM_EXPERTS)


def check_route(module, *arguments):
    expert, weight = module.route(*arguments)
    expected_expert, expected_weight = module.route_ref(*arguments)
    assert expert.dtype == torch.int32
    assert torch.equal(expert, expected_expert)
    # below 1e-37 sigmoid's own fp32 statements begin to differ
    assert_within(weight, expected_weight, 1e-4, 1e-15)


# At level -60 the scores are so small that the 1e-20 in the normalisation decides the weights.
@cases_with("level", -60.0, -2.0, 4.0, -100.0, -60.0, -30.0, -2.0, 0.0, 4.0)
def test_route(device, seed, level):
    case = Case(device, seed)
    logits, bias = clear_logits(case, level)
    offset = case.choice([0, 7, NUM_EXPERTS - NUM_LOCAL_EXPERTS])
    factor = case.choice([1.0, 2.5])
    module = import_module(ROUTE)
    check_route(module, logits, bias, offset, factor, NUM_LOCAL_EXPERTS)


SIZES = ("NUM_EXPERTS", "NUM_LOCAL_EXPERTS", "TOP_K", "NUM_GROUPS", "KEPT_GROUPS")
LAYERS = [
    (160, 20, 8, 8, 3),
    (288, 36, 6, 1, 1),
    (192, 5, 16, 6, 2),
    (1024, 1, 1, 2, 1),
]


@pytest.mark.parametrize("sizes", LAYERS)
def test_route_of_other_layers(device, sizes):
    module = import_module(ROUTE)
    num_experts, num_local, *_ = sizes
    case = Case(device, 1)
    logits = case.normal(9, num_experts)
    bias = random_bias(case, num_experts)
    constants = dict(zip(SIZES, sizes, strict=True))

    with mock.patch.multiple(module.problem, **constants):
        reload(module)
        check_route(module, logits, bias, num_experts - num_local, 2.5, num_local)
    reload(module)


# ---- gemm1, swiglu_quant and both in one ----


@cases(5)
def test_gemm1(device, seed):
    case = Case(device, seed)
    operands = case.gemm1_operands()
    rows = case.used_rows

    output = gemm1(*operands, case.permutation, case.tile)[rows]

    expected = gemm1_ref(*operands, case.permutation, case.tile.block_m)[rows]
    assert_within(output, expected, BF16_STEP, fp32_noise(device, expected))


@cases(5)
def test_gemm1_swiglu_quant(device, seed):
    case = Case(device, seed)
    operands = case.gemm1_operands()
    rows = case.used_rows

    h, scale = gemm1_swiglu_quant(*operands, case.permutation, case.tile)

    block_m = case.tile.block_m
    expected_h, expected_scale = gemm1_swiglu_quant_ref(
        *operands, case.permutation, block_m
    )
    output = (h[rows], scale[rows])
    expected = (expected_h[rows], expected_scale[rows])
    noise = fp32_noise(device, dequantised(*expected))
    assert_fp8_within(device, output, expected, noise)


@cases(1)
def test_gemm1_in_the_order_of_engines(device, seed, monkeypatch):
    """Gate before up, and x scales row by row. tests/solutions/every/test_routed.py has it of
    gemm1_swiglu_quant.
    """
    case = Case(device, seed)
    x, x_scale, w13, w13_scale = case.gemm1_operands()
    rows = case.used_rows
    expected = gemm1(x, x_scale, w13, w13_scale, case.permutation, case.tile)

    module = import_module(gemm1.__module__)
    monkeypatch.setattr(module, "GATE_FIRST", True)
    monkeypatch.setattr(module, "SCALES_ROW_MAJOR", True)
    x_scale = x_scale.t().contiguous()
    w13 = halves_swapped(w13)
    w13_scale = halves_swapped(w13_scale)
    output = gemm1(x, x_scale, w13, w13_scale, case.permutation, case.tile)

    assert torch.equal(output[rows], expected[rows])


@cases_with("size", 1e-30, 1.0, 1e4, 1e-30, 1e-3, 1.0, 1e4)
def test_quantise_tokens(device, seed, size):
    case = Case(device, seed)
    hidden = case.choice([case.hidden, 1024])  # 1024: eight groups a program
    x = size * case.normal(case.num_tokens, hidden)
    x = x.bfloat16()
    x[::3, :128] = 0  # a quantisation group of zeros
    x[1::3] *= 100

    values, scale = quantise_tokens(x)

    expected_values, expected_scale = quantise_tokens_ref(x)
    assert torch.equal(values.float(), expected_values.float())
    assert torch.equal(scale, expected_scale)


@pytest.mark.parametrize("row_major", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 16, 37])
def test_dequantise(device, num_tokens, row_major, monkeypatch):
    """Catches another token's scale, which the routing's weights would hide."""
    case = Case(device, num_tokens)
    x = case.fp8(num_tokens, case.hidden)
    x_scale = case.scales(case.hidden // 128, num_tokens)
    expected = dequantise_ref(x, x_scale)

    if row_major:
        x_scale = x_scale.t().contiguous()
        module = import_module(dequantise.__module__)
        monkeypatch.setattr(module, "SCALES_ROW_MAJOR", True)
    output = dequantise(x, x_scale)

    # Triton's interpreter cuts bf16 off instead of rounding it.
    step = 0 if device == "cuda" else BF16_STEP
    torch.testing.assert_close(output, expected, rtol=step, atol=0)
    torch.testing.assert_close(dequantise_ref(x, x_scale), expected, rtol=0, atol=0)


@cases_with("size", 1e-3, 1.0, 30.0, 1e-3, 1.0)
def test_swiglu_quant(device, seed, size):
    case = Case(device, seed)
    inter = case.choice([case.inter, 1024])  # 1024: eight groups a program
    programs = case.choice([1, 5, 1000])
    num_rows = len(case.permutation.pair_of_row)
    g = size * case.normal(num_rows, 2 * inter)
    g = g.bfloat16()
    g[::3, :128] = 0  # a quantisation group of zeros
    g[1::7] *= 100
    rows = case.used_rows

    h, scale = swiglu_quant(g, case.permutation, case.tile.block_m, programs)

    expected_h, expected_scale = swiglu_quant_ref(g)
    output = (h[rows], scale[rows])
    expected = (expected_h[rows], expected_scale[rows])
    assert_fp8_within(device, output, expected, noise=0)


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, h_ptr):
    at = tl.arange(0, 256)
    gate = tl.load(gate_ptr + at)
    up = tl.load(up_ptr + at)
    tl.store(h_ptr + at, swiglu(gate, up))


@pytest.fixture
def set_activation(monkeypatch):
    """A function that gives `swiglu` and its statement an activation and a limit."""

    def set_sizes(sizes):
        module = import_module(swiglu.fn.__module__)
        for name, value in activations.constants(sizes).items():
            constant = name.upper()
            monkeypatch.setattr(module.problem, constant, value)
            compiled_in = constant.removeprefix("SWIGLU_")
            monkeypatch.setattr(module, compiled_in, tl.constexpr(value))
        monkeypatch.setattr(activations, "LIMIT", float(sizes["swiglu_limit"]))
        return module.swiglu_ref

    return set_sizes


@pytest.mark.parametrize(
    ("activation", "limit"),
    [("silu", 10), ("silu", 0.5), ("swigluoai", 7), ("swiglustep", 7)],
)
def test_clamped_swiglu(device, activation, limit, set_activation):
    """NaN stays NaN."""
    if device == "cuda":
        pytest.skip("the definition's activation is compiled in")
    sizes = {"activation": activation, "swiglu_limit": limit}
    swiglu_ref = set_activation(sizes)
    swiglu_of_definition = activations.function_of(sizes)
    up, gate = 10 * Draw(device).normal(2, 256)
    gate[:2] = torch.tensor([torch.nan, torch.inf])
    up[2:4] = torch.tensor([torch.nan, -torch.inf])
    output = torch.empty_like(up)

    swiglu_kernel[(1,)](gate, up, output)

    for statement in (swiglu_ref, swiglu_of_definition):
        expected = statement(gate, up)
        torch.testing.assert_close(
            output, expected, rtol=1e-5, atol=1e-5, equal_nan=True
        )


# ---- gemm2 ----


@cases(5)
def test_gemm2_in_column_slices(device, seed):
    """As only large batches use them."""
    case = Case(device, seed)
    permutation = case.permutation
    rows = case.used_rows
    num_rows = len(permutation.pair_of_row)
    block_m = case.tile.block_m
    end_of_tiles = int(permutation.num_tiles) * block_m
    h = case.fp8(num_rows, case.inter)
    h_scale = case.scales(num_rows, case.inter // 128)
    w2, w2_scale = case.weights(case.hidden, case.inter)
    operands = (h, h_scale, w2, w2_scale, permutation)
    width = case.slice_width()

    for first in range(0, case.hidden, width):
        y = case.full_of_nan(num_rows, width)
        gemm2(*operands, first, y, case.tile)

        expected = gemm2_ref(*operands, block_m, first, width)[rows]
        noise = fp32_noise(device, expected)
        assert_within(y[rows], expected, BF16_STEP, noise)
        assert y[end_of_tiles:].isnan().all(), "a tile without rows was computed"


# ---- combine ----


@cases_with("num_tokens", 1, 65, 64, 40)  # 65 change the block size
@pytest.mark.parametrize("branch", [False, True])
def test_combine(device, seed, num_tokens, branch):
    """Scratch and output hold NaN wherever no row was computed."""
    case = Case(device, seed)
    case.num_tokens = num_tokens
    expert = case.experts()
    expert[::5] = -1  # at least token 0 has no local expert
    permutation = permute_ref(expert, NUM_LOCAL_EXPERTS, 16)
    row_of_pair = permutation.row_of_pair
    weight = case.normal(num_tokens, TOP_K)
    output = case.full_of_nan(num_tokens, case.hidden)
    expected = output.clone()
    width = case.slice_width()

    for first in range(0, case.hidden, width):
        end = first + width
        y = random_y(case, permutation, width)
        combine(y, row_of_pair, weight, output, first, branch)
        combine_ref(y, row_of_pair, weight, expected, first)
        assert output[:, end:].isnan().all()

    nowhere = (row_of_pair < 0).all(1)
    assert nowhere[0]
    assert (output[nowhere] == 0).all()
    assert_within(output, expected, BF16_STEP, 1e-6)


def random_y(case, permutation, width):
    """Return y [rows, width]: NaN in rows of no token."""
    rows = rows_of_tokens(permutation)
    values = case.normal(len(rows), width)
    y = case.full_of_nan(len(permutation.pair_of_row), width)
    y[rows] = values.bfloat16()
    return y
