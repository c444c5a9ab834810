"""mma_fused above 256 tokens: the fp16 GEMMs against their plain statements, and which tiles are
chosen.
"""

import sys
from dataclasses import dataclass, replace
from unittest import mock

import ahead_of_time
import layer_inputs
import mma_small_layer as small
import pytest
import torch
from every_solution import assert_close, expected_output
from moebench.operators import catalogue
from moebench.packing import manifest
from permuted_rows import rows_of_tokens
from random_values import Draw

from solutions.common.triton.rows.permute import permute_ref

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOST_TOKENS = 256  # of the one launch
EXPERTS = 3
NUM_TOKENS = 23
HIDDEN = 256
INTER = 256
HIDDEN_BLOCKS = HIDDEN // 128
INTER_BLOCKS = INTER // 128
GEMM2_COLUMNS = 384
FIRST_COLUMN = 128  # a slice of gemm2's columns that does not begin with the first
SLICE_WIDTH = 256


@dataclass(frozen=True)
class Blocks:
    """A tile's sizes, and whether weights are unpacked as bytes, which takes inline assembly that
    the interpreter has not.
    """

    m: int
    n: int
    k: int
    as_bytes: bool = False


def on_each(*tiles):
    """Parametrise a test with these tiles, and on a GPU with unpacking as bytes as well."""
    parameters = list(tiles)
    for tile in tiles:
        as_bytes = replace(tile, as_bytes=True)
        parameters.append(pytest.param(as_bytes, marks=pytest.mark.gpu))
    return pytest.mark.parametrize("blocks", parameters, ids=str)


@pytest.fixture
def module(packed_module):
    """Name of a module of many_tokens -> the module."""
    return lambda name: packed_module("mma_fused", f"many_tokens.{name}")


@pytest.fixture
def draw():
    return Draw(DEVICE)


def permutation(draw, block_m):
    """Return the rows of tokens with two of the experts each, some of them with one."""
    order = draw.order(NUM_TOKENS, EXPERTS + 1)
    expert = order[:, :2].to(torch.int32) - 1
    return permute_ref(expert, EXPERTS, block_m)


def real_rows(permuted, *values):
    """Return the values [rows, ...] of the rows that have a token, as fp32."""
    rows = rows_of_tokens(permuted)
    return [value[rows].float() for value in values]


def choice(module, blocks):
    tiles = module("choose_tiles")
    options = {"per_sm": 1, "num_warps": 4, "num_stages": 2, "programs": 3}
    tile = tiles.Tile(blocks.m, blocks.n, blocks.k, 2, **options)
    return tiles.Fp16Choice(tile, tile, blocks.as_bytes)


def row_errors(output, expected):
    """Return the error of each row, relative to its norm."""
    error = (output - expected).norm(dim=-1)
    norm = expected.norm(dim=-1)
    return error / norm.clamp(min=1e-30)


def assert_rows_close(output, expected, limit):
    """Check that no row's error exceeds the limit, relative to its norm."""
    assert (row_errors(output, expected) < limit).all()


def wide_halves(h, scale):
    """Return h [rows, blocks, 128] of its values and scales of 128 columns."""
    blocks = h.unflatten(1, (-1, 128))
    return blocks * scale[..., None]


class Gemm1:
    """Operands of gemm1: every FP8 code among the tokens, and some weights of zero."""

    def __init__(self, draw, block_m):
        self.permuted = permutation(draw, block_m)
        self.x = draw.fp8(NUM_TOKENS, HIDDEN)
        self.x_scale = draw.normal(HIDDEN_BLOCKS, NUM_TOKENS)
        self.w13 = draw.fp8(EXPERTS, 2 * INTER, HIDDEN)
        self.w13_scale = draw.normal(EXPERTS, 2 * INTER_BLOCKS, HIDDEN_BLOCKS) / 16

        every_code = torch.arange(2 * HIDDEN, device=DEVICE) % 127
        first_tokens = self.x[:2].view(torch.uint8)
        first_tokens[:] = every_code.view(2, HIDDEN)
        self.w13[0, :8] = 0

    def operands(self, routed):
        x_scale = self.x_scale
        if routed:
            x_scale = x_scale.t().contiguous()
        return self.x, x_scale, self.w13, self.w13_scale, self.permuted


@pytest.mark.parametrize("routed", [False, True])
@on_each(Blocks(16, 128, 128), Blocks(32, 128, 64))
def test_gemm1_swiglu_fp16(module, draw, blocks, routed, monkeypatch):
    stage = module("gemm1_swiglu_fp16")
    gemm1 = Gemm1(draw, blocks.m)
    operands = gemm1.operands(routed)
    if routed:
        reference_module = sys.modules[stage.gemm1_ref.__module__]
        for stage_module in (stage, reference_module):
            monkeypatch.setattr(stage_module, "GATE_FIRST", True)
            monkeypatch.setattr(stage_module, "SCALES_ROW_MAJOR", True)

    output = stage.gemm1_swiglu_fp16(*operands, choice(module, blocks))

    h, scale = real_rows(gemm1.permuted, *output)
    is_power_of_two = scale.frexp().mantissa == 0.5
    assert is_power_of_two.all()
    assert h.abs().max() < 2**15

    expected = stage.gemm1_swiglu_fp16_ref(*operands, blocks.m)
    expected_h = wide_halves(*real_rows(gemm1.permuted, *expected))
    assert_rows_close(wide_halves(h, scale), expected_h, 1e-3)


@on_each(Blocks(16, 128, 128), Blocks(32, 128, 64))
def test_gemm2_fp16(module, draw, blocks):
    permuted = permutation(draw, blocks.m)
    stage = module("gemm2_fp16")
    rows = len(permuted.pair_of_row)
    h = draw.normal(rows, INTER).half()
    exponent = draw.integers(-8, 8, rows, INTER_BLOCKS).float()
    w2 = draw.fp8(EXPERTS, GEMM2_COLUMNS, INTER)
    w2_scale = draw.normal(EXPERTS, GEMM2_COLUMNS // 128, INTER_BLOCKS)
    operands = (h, exponent.exp2(), w2, w2_scale, permuted)
    y = draw.full_of_nan(rows, SLICE_WIDTH)

    stage.gemm2_fp16(*operands, FIRST_COLUMN, y, choice(module, blocks))

    expected = stage.gemm2_fp16_ref(*operands, blocks.m, FIRST_COLUMN, SLICE_WIDTH)
    assert_rows_close(*real_rows(permuted, y, expected), 4e-3)


# ---- MXFP4 weights ----


MXFP4_KEY = "deepseek-v4-flash-ep8-mxfp4"
mxfp4_tiles = on_each(Blocks(16, 128, 128), Blocks(32, 64, 128))


def mxfp4_weights(draw, columns, depth):
    """Return packed weights [E, columns, depth / 2] and their scales, of which some are the
    least.
    """
    weights = draw.mxfp4_weights(EXPERTS, columns, depth)
    scales = draw.integers(110, 126, EXPERTS, columns, depth // 32, dtype=torch.uint8)
    scales[..., ::5] = 0
    return weights, scales.view(torch.int8)


@mxfp4_tiles
def test_gemm1_swiglu_mxfp4(module, draw, blocks):
    permuted = permutation(draw, blocks.m)
    stage = module("gemm1_swiglu_mxfp4")
    x = draw.fp8(NUM_TOKENS, HIDDEN)
    x_scale = draw.normal(NUM_TOKENS, HIDDEN_BLOCKS)
    weights = mxfp4_weights(draw, 2 * INTER, HIDDEN)
    operands = (x, x_scale, *weights, permuted)

    h, scale = stage.gemm1_swiglu_mxfp4(*operands, choice(module, blocks))

    assert scale is None
    expected = stage.gemm1_swiglu_mxfp4_ref(*operands, blocks.m)
    assert_rows_close(*real_rows(permuted, h, expected), 4e-3)


@mxfp4_tiles
def test_gemm2_mxfp4_bf16(module, draw, blocks):
    permuted = permutation(draw, blocks.m)
    stage = module("gemm2_mxfp4_bf16")
    rows = len(permuted.pair_of_row)
    h = draw.normal(rows, INTER).bfloat16()
    weights = mxfp4_weights(draw, GEMM2_COLUMNS, INTER)
    operands = (*weights, permuted)
    y = draw.full_of_nan(rows, SLICE_WIDTH)

    stage.gemm2_mxfp4_bf16(h, None, *operands, FIRST_COLUMN, y, choice(module, blocks))

    slice_of_columns = (FIRST_COLUMN, SLICE_WIDTH)
    expected = stage.gemm2_mxfp4_bf16_ref(h, *operands, blocks.m, *slice_of_columns)
    assert_rows_close(*real_rows(permuted, y, expected), 4e-3)


TOKEN_TENSORS = ("hidden_states", "hidden_states_scale", "topk_ids")


class Launches:
    """In place of the compiled kernels: the arguments of each call, whose output it fills."""

    def __init__(self):
        self.arguments = []

    def run_mxfp4(self, *arguments):
        self.arguments.append(arguments)
        *_, output, ctas = arguments
        output.fill_(len(self.arguments))


@pytest.fixture
def mxfp4_main(packed_module):
    """The packed solution's main.py, and the calls of its one launch."""
    launches = Launches()
    packed_module("mma_fused", "build", MXFP4_KEY).load_kernels = lambda: launches
    return packed_module("mma_fused", "main", MXFP4_KEY), launches


@pytest.mark.parametrize(
    ("num_tokens", "shares"), [(257, [132, 125]), (1025, [208] * 4 + [193])]
)
def test_mxfp4_tokens_are_shared_among_launches(mxfp4_main, num_tokens, shares):
    main, launches = mxfp4_main
    values = layer_inputs.arguments("small-mxfp4", num_tokens, "cpu", offset=0)

    with mock.patch.object(main, "check_arguments"):
        main.run_mxfp4(*values.values())

    by_place = list(zip(*launches.arguments, strict=True))
    assert [len(tokens) for tokens in by_place[0]] == shares
    for name, parts in zip(TOKEN_TENSORS, by_place[:3], strict=True):
        check_parts(parts, values[name])
    for name, weights in zip(
        layer_inputs.WEIGHTS_AND_SCALES, by_place[4:8], strict=True
    ):
        for weight in weights:
            assert weight is values[name]
    assert values["output"].isfinite().all()


def check_parts(parts, whole):
    """Check that tensors are the whole one cut in parts, each of them aligned."""
    assert torch.equal(torch.cat(parts).float(), whole.float())
    for part in parts:
        assert part.data_ptr() % 16 == 0


def test_more_mxfp4_tokens_than_a_few_launches_take(mxfp4_main):
    main, launches = mxfp4_main
    values = layer_inputs.arguments("small-mxfp4", 2049, "cpu", offset=0)
    with (
        mock.patch.object(main, "check_arguments"),
        mock.patch.object(main, "many_tokens_mxfp4") as many,
    ):
        main.run_mxfp4(*values.values())
    many.assert_called_once()
    assert not launches.arguments


def test_arguments_of_several_launches_are_checked(mxfp4_main):
    main, launches = mxfp4_main
    values = layer_inputs.arguments(MXFP4_KEY, 300, "meta", offset=0)
    values["topk_ids"] = values["topk_ids"][:299]
    with pytest.raises(ValueError, match="topk_ids"):
        main.run_mxfp4(*values.values())
    assert not launches.arguments


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89"])
@pytest.mark.parametrize("num_tokens", [300, 2000])
def test_mxfp4_layer_of_other_architectures(packed_module, architecture, num_tokens):
    many = packed_module("mma_fused", "many_tokens.many_tokens", MXFP4_KEY)
    values = layer_inputs.arguments(MXFP4_KEY, num_tokens, offset=16)
    expected = expected_output(MXFP4_KEY, values)
    gpu = (architecture, "", 132)

    with mock.patch.object(many, "gpu_of", lambda device: gpu):
        many.many_tokens_mxfp4(*values.values())

    assert_close(values["output"], expected, tolerances=["relaxed"])


# ---- unpacking of FP8 ----


def permuted_bytes(value, selector):
    """Return prmt.b32 of a register and zero."""
    data = value.to_bytes(8, "little")
    chosen = []
    for shift in (0, 4, 8, 12):
        place = selector >> shift & 7
        chosen.append(data[place])
    return int.from_bytes(chosen, "little")


def result_of(name, operands):
    """Return what one of the few instructions of fp8_to_fp16.UNPACK gives."""
    first, second, *others = operands
    if name == "prmt.b32":
        assert second == 0
        return permuted_bytes(first, *others)
    if name == "and.b32":
        return first & second
    if name == "shr.u32":
        return first >> second
    assert name == "lop3.b32"
    third, table = others
    assert table == (0xF0 & 0xCC | 0xAA)
    return first & second | third


def executed(text, word):
    """Return $0 and $1 of UNPACK's instructions, which no interpreter here runs, for $2."""
    registers = {"$2": word}
    for line in text.splitlines():
        words = line.strip(" {};").replace(",", " ").split()
        if not words or words[0] == ".reg":
            continue
        name, target, *sources = words
        operands = []
        for source in sources:
            is_register = source in registers
            operands.append(registers[source] if is_register else int(source, 0))
        registers[target] = result_of(name, operands)
    return [registers["$0"], registers["$1"]]


def test_unpacking_is_exact(module):
    unpacking = module("fp8_to_fp16")
    every_code = torch.arange(256, dtype=torch.uint8)
    words = every_code.view(torch.int32).tolist()

    pairs = []
    for word in words:
        pairs += executed(unpacking.UNPACK.value, word & 0xFFFFFFFF)

    halves = torch.tensor(pairs).to(torch.uint32).view(torch.float16)
    output = halves.float() * unpacking.UNPACKED_SCALE
    expected = every_code.view(torch.float8_e4m3fn).float()
    finite = expected.isfinite()
    assert torch.equal(output[finite], expected[finite])
    assert (output[~finite].abs() == 480).all()


# ---- tiles ----


FEW_COUNTS = [*range(MOST_TOKENS + 1, 4096, 97), *range(4096, 2**17, 1999)]


@dataclass(frozen=True)
class Shape:
    """What the tiles of a layer depend on."""

    sizes: tuple[int, int, int]
    share: float  # of the experts that a token takes


def shape_of(layer_key):
    layer = catalogue.layer_sizes()[layer_key]
    sizes = (
        layer["num_local_experts"],
        layer["hidden_size"],
        layer["intermediate_size"],
    )
    return Shape(sizes, layer["top_k"] / layer["num_experts"])


def choices_of(module, architecture, shape, token_counts):
    most = ahead_of_time.MULTIPROCESSORS[architecture]
    choose = module("choose_tiles").choose_many
    choices = set()
    for count in token_counts:
        choices.add(choose(architecture, "", most, shape.sizes, shape.share, count))
    return choices


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_every_token_count_has_tiles(module, architecture):
    shapes = set(map(shape_of, manifest.read_manifest("mma_fused").definitions))
    for shape in shapes:
        choices = choices_of(module, architecture, shape, FEW_COUNTS)
        assert choices
        for gemm1, gemm2, *_ in choices:
            assert gemm1.block_m % gemm2.block_m == 0
            assert gemm1.programs > 0
            assert gemm2.programs > 0


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_every_token_count_has_tiles_for_mxfp4(module, architecture):
    choose = module("choose_tiles").choose_many_mxfp4
    for count in FEW_COUNTS:
        gemm1, gemm2, *_ = choose(architecture, 108, count * 6 / 256)
        assert gemm1.block_m == gemm2.block_m
        assert gemm1.programs > 0
        assert gemm2.programs > 0
