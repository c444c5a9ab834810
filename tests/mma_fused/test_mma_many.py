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
    pairs = draw.order(NUM_TOKENS, EXPERTS + 1)[:, :2].to(torch.int32)
    return permute_ref(pairs - 1, EXPERTS, block_m)


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
    norm = expected.norm(dim=-1).clamp(min=1e-30)
    return (output - expected).norm(dim=-1) / norm


def wide_halves(h, scale):
    """Return h [rows, blocks, 128] of its values and scales of 128 columns."""
    return h.unflatten(1, (-1, 128)) * scale[..., None]


class Gemm1:
    """Operands of gemm1: every FP8 code among the tokens, and some weights of zero."""

    def __init__(self, draw, block_m):
        self.permuted = permutation(draw, block_m)
        every_value = torch.arange(2 * HIDDEN, device=DEVICE) % 127
        self.x = draw.fp8(NUM_TOKENS, HIDDEN)
        self.x[:2] = every_value.to(torch.uint8).view(self.x.dtype).view(2, HIDDEN)
        self.x_scale = draw.normal(HIDDEN // 128, NUM_TOKENS)
        self.w13 = draw.fp8(EXPERTS, 2 * INTER, HIDDEN)
        self.w13[0, :8] = 0
        self.w13_scale = draw.normal(EXPERTS, 2 * INTER // 128, HIDDEN // 128) / 16

    def operands(self, routed):
        x_scale = self.x_scale.t().contiguous() if routed else self.x_scale
        return self.x, x_scale, self.w13, self.w13_scale, self.permuted


@pytest.mark.parametrize("routed", [False, True])
@on_each(Blocks(16, 128, 128), Blocks(32, 128, 64))
def test_gemm1_swiglu_fp16(module, draw, blocks, routed, monkeypatch):
    stage = module("gemm1_swiglu_fp16")
    gemm1 = Gemm1(draw, blocks.m)
    operands = gemm1.operands(routed)
    if routed:  # gate first, scales row-major
        for each in (stage, sys.modules[stage.gemm1_ref.__module__]):
            monkeypatch.setattr(each, "GATE_FIRST", True)
            monkeypatch.setattr(each, "SCALES_ROW_MAJOR", True)

    output = stage.gemm1_swiglu_fp16(*operands, choice(module, blocks))
    expected = stage.gemm1_swiglu_fp16_ref(*operands, blocks.m)

    h, scale = real_rows(gemm1.permuted, *output)
    assert (scale.frexp().mantissa == 0.5).all()
    assert (h.abs() < 2**15).all()
    expected_h = wide_halves(*real_rows(gemm1.permuted, *expected))
    assert (row_errors(wide_halves(h, scale), expected_h) < 1e-3).all()


@on_each(Blocks(16, 128, 128), Blocks(32, 128, 64))
def test_gemm2_fp16(module, draw, blocks):
    """Of a slice of the columns that does not begin with the first."""
    permuted = permutation(draw, blocks.m)
    stage = module("gemm2_fp16")
    rows = len(permuted.pair_of_row)
    h = draw.normal(rows, INTER).half()
    h_scale = torch.exp2(draw.integers(-8, 8, rows, INTER // 128).float())
    w2 = draw.fp8(EXPERTS, 384, INTER)
    w2_scale = draw.normal(EXPERTS, 3, INTER // 128)
    operands = (h, h_scale, w2, w2_scale, permuted)
    y = draw.full_of_nan(rows, 256)

    stage.gemm2_fp16(*operands, 128, y, choice(module, blocks))

    expected = stage.gemm2_fp16_ref(*operands, blocks.m, 128, 256)
    y, expected = real_rows(permuted, y, expected)
    assert (row_errors(y, expected) < 4e-3).all()


# ---- MXFP4 weights ----


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
    x_scale = draw.normal(NUM_TOKENS, HIDDEN // 128)
    operands = (x, x_scale, *mxfp4_weights(draw, 2 * INTER, HIDDEN), permuted)

    h, scale = stage.gemm1_swiglu_mxfp4(*operands, choice(module, blocks))

    assert scale is None
    expected = stage.gemm1_swiglu_mxfp4_ref(*operands, blocks.m)
    h, expected = real_rows(permuted, h, expected)
    assert (row_errors(h, expected) < 4e-3).all()


@mxfp4_tiles
def test_gemm2_mxfp4_bf16(module, draw, blocks):
    """Of a slice of the columns that does not begin with the first."""
    permuted = permutation(draw, blocks.m)
    stage = module("gemm2_mxfp4_bf16")
    rows = len(permuted.pair_of_row)
    h = draw.normal(rows, INTER).bfloat16()
    weights = mxfp4_weights(draw, 384, INTER)
    y = draw.full_of_nan(rows, 256)

    stage.gemm2_mxfp4_bf16(h, None, *weights, permuted, 128, y, choice(module, blocks))

    expected = stage.gemm2_mxfp4_bf16_ref(h, *weights, permuted, blocks.m, 128, 256)
    y, expected = real_rows(permuted, y, expected)
    assert (row_errors(y, expected) < 4e-3).all()


TOKEN_TENSORS = ("hidden_states", "hidden_states_scale", "topk_ids")
WEIGHTS = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")


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
    key = "deepseek-v4-flash-ep8-mxfp4"
    launches = Launches()
    packed_module("mma_fused", "build", key).load_kernels = lambda: launches
    return packed_module("mma_fused", "main", key), launches


@pytest.mark.parametrize(("num_tokens", "shares"), [(257, [132, 125]), (1025, [208] * 4 + [193])])
def test_mxfp4_tokens_are_shared_among_launches(mxfp4_main, num_tokens, shares):
    main, launches = mxfp4_main
    values = layer_inputs.arguments("small-mxfp4", num_tokens, "cpu", offset=0)

    with mock.patch.object(main, "check_arguments"):
        main.run_mxfp4(*values.values())

    calls = launches.arguments
    assert [len(arguments[0]) for arguments in calls] == shares
    for place, name in enumerate(TOKEN_TENSORS):
        check_parts([arguments[place] for arguments in calls], values[name])
    for place, name in enumerate(WEIGHTS, 4):
        assert all(arguments[place] is values[name] for arguments in calls)
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
    values = layer_inputs.arguments("deepseek-v4-flash-ep8-mxfp4", 300, "meta", offset=0)
    values["topk_ids"] = values["topk_ids"][:299]
    with pytest.raises(ValueError, match="topk_ids"):
        main.run_mxfp4(*values.values())
    assert not launches.arguments


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89"])
@pytest.mark.parametrize("num_tokens", [300, 2000])
def test_mxfp4_layer_of_other_architectures(packed_module, architecture, num_tokens):
    many = packed_module("mma_fused", "many_tokens.many_tokens", "deepseek-v4-flash-ep8-mxfp4")
    values = layer_inputs.arguments("deepseek-v4-flash-ep8-mxfp4", num_tokens, offset=16)
    expected = expected_output("deepseek-v4-flash-ep8-mxfp4", values)
    gpu = (architecture, "", 132)

    with mock.patch.object(many, "gpu_of", lambda device: gpu):
        many.many_tokens_mxfp4(*values.values())

    assert_close(values["output"], expected, tolerances=["relaxed"])


# ---- unpacking of FP8 ----


def permuted_bytes(value, selector):
    """Return prmt.b32 of a register and zero."""
    data = [*value.to_bytes(4, "little"), 0, 0, 0, 0]
    chosen = [data[selector >> shift & 7] for shift in (0, 4, 8, 12)]
    return int.from_bytes(bytes(chosen), "little")


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
            operands.append(registers[source] if source in registers else int(source, 0))
        registers[target] = result_of(name, operands)
    return [registers["$0"], registers["$1"]]


def test_unpacking_is_exact(module):
    unpacking = module("fp8_to_fp16")
    data = torch.arange(256, dtype=torch.uint8)
    halves = []
    for first in range(0, 256, 4):
        word = int.from_bytes(bytes(range(first, first + 4)), "little")
        for pair in executed(unpacking.UNPACK.value, word):
            halves += [pair & 0xFFFF, pair >> 16]

    halves = torch.tensor(halves).to(torch.uint16).view(torch.float16)
    output = halves.float() * unpacking.UNPACKED_SCALE

    expected = data.view(torch.float8_e4m3fn).float()
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
    sizes = (layer["num_local_experts"], layer["hidden_size"], layer["intermediate_size"])
    return Shape(sizes, layer["top_k"] / layer["num_experts"])


def choices_of(module, architecture, shape, token_counts):
    most = ahead_of_time.MULTIPROCESSORS[architecture]
    choose = module("choose_tiles").choose_many
    return {
        choose(architecture, "", most, shape.sizes, shape.share, count) for count in token_counts
    }


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


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_what_is_compiled_are_all_tiles(module, architecture):
    """Of test_mma_compile.py."""
    every = choices_of(module, architecture, shape_of("full"), range(MOST_TOKENS + 1, 2**17, 97))
    assert every == choices_of(module, architecture, shape_of("full"), small.MANY_TOKENS)
