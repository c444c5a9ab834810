"""mma_fused above 256 tokens: the fp16 GEMMs against their plain statements, and which tiles are
chosen.
"""

import sys
from unittest import mock

import ahead_of_time
import mma_small_layer as small
import pytest
import torch
from moebench.operators import catalogue
from moebench.packing import manifest

from solutions.common.triton.permute import permute_ref

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOST_TOKENS = 256  # of the one launch
# the interpreter has no inline assembly
AS_BYTES = [False, pytest.param(True, marks=pytest.mark.gpu)]


@pytest.fixture
def module(packed_module):
    """Name of a module of many_tokens -> the module."""
    return lambda name: packed_module("mma_fused", f"many_tokens.{name}")


def fp8(*shape):
    return torch.randn(shape, device=DEVICE).to(torch.float8_e4m3fn)


def permutation(num_tokens, experts, block_m):
    """Of tokens with two of the experts each, some of them with one."""
    expert = (
        torch.stack([torch.randperm(experts + 1)[:2] for _ in range(num_tokens)]).to(torch.int32)
        - 1
    )
    return permute_ref(expert.to(DEVICE), experts, block_m)


def real_rows(permuted):
    return permuted.pair_of_row[: int(permuted.num_rows)] >= 0


def choice(module, block_m, block_k, as_bytes):
    tiles = module("choose_tiles")
    tile = tiles.Tile(block_m, 128, block_k, 2, per_sm=1, num_warps=4, num_stages=2, programs=3)
    return tiles.Fp16Choice(tile, tile, as_bytes)


SIZES = [(16, 128), (32, 64)]


@pytest.mark.parametrize("as_bytes", AS_BYTES)
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize(("block_m", "step"), SIZES)
def test_gemm1_swiglu_fp16(module, block_m, step, routed, as_bytes):
    """A user would miss: a wrong answer for long prompts on an A100 or an L40S, which nobody here
    has.
    """
    torch.manual_seed(0)
    num_tokens, experts, hidden, inter = 23, 3, 256, 256
    permuted, stage = permutation(num_tokens, experts, block_m), module("gemm1_swiglu_fp16")
    x_scale = torch.randn(hidden // 128, num_tokens, device=DEVICE)
    x = fp8(num_tokens, hidden), x_scale.t().contiguous() if routed else x_scale
    w = (
        fp8(experts, 2 * inter, hidden),
        torch.randn(experts, 2 * inter // 128, hidden // 128, device=DEVICE) / 16,
    )
    w[0][0, :8] = 0
    x[0][:2] = (
        (torch.arange(2 * hidden, device=DEVICE) % 127)
        .to(torch.uint8)
        .view(x[0].dtype)
        .view(2, hidden)
    )
    forms = {"GATE_FIRST": routed, "SCALES_ROW_MAJOR": routed}
    of_ref = sys.modules[stage.gemm1_ref.__module__]
    with mock.patch.multiple(stage, **forms), mock.patch.multiple(of_ref, **forms):
        h, scale = stage.gemm1_swiglu_fp16(
            *x, *w, permuted, choice(module, block_m, step, as_bytes)
        )
        want, want_scale = stage.gemm1_swiglu_fp16_ref(*x, *w, permuted, block_m)
    real = real_rows(permuted)
    h, scale, want, want_scale = (
        value[: len(real)][real].float() for value in (h, scale, want, want_scale)
    )
    assert (scale.frexp().mantissa == 0.5).all() and (h.abs() < 2**15).all()
    got, want = (
        (v.unflatten(1, (-1, 128)) * s[..., None]) for v, s in ((h, scale), (want, want_scale))
    )
    error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)
    assert (error < 1e-3).all(), error.max()


@pytest.mark.parametrize("as_bytes", AS_BYTES)
@pytest.mark.parametrize(("block_m", "step"), SIZES)
def test_gemm2_fp16(module, block_m, step, as_bytes):
    """A user would miss: the same, or columns of the second slice in the wrong place."""
    torch.manual_seed(1)
    experts, hidden, inter = 3, 384, 256
    permuted, stage = permutation(23, experts, block_m), module("gemm2_fp16")
    rows = len(permuted.pair_of_row)
    h = torch.randn(rows, inter, device=DEVICE).half()
    h_scale = 2.0 ** torch.randint(-8, 8, (rows, inter // 128), device=DEVICE)
    w = (
        fp8(experts, hidden, inter),
        torch.randn(experts, hidden // 128, inter // 128, device=DEVICE),
    )
    y = torch.full((rows, 256), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    stage.gemm2_fp16(h, h_scale, *w, permuted, 128, y, choice(module, block_m, step, as_bytes))
    want = stage.gemm2_fp16_ref(h, h_scale, *w, permuted, block_m, 128, 256)
    real = real_rows(permuted)
    got, want = (value[: len(real)][real].float() for value in (y, want))
    assert ((got - want).norm(dim=-1) < 4e-3 * want.norm(dim=-1)).all()


def permuted_bytes(value, selector):
    """prmt.b32 of a register and zero."""
    data = [*value.to_bytes(4, "little"), 0, 0, 0, 0]
    return int.from_bytes(bytes(data[selector >> 4 * i & 7] for i in range(4)), "little")


def executed(text, word):
    """$0 and $1 of the few instructions of fp8_to_fp16.UNPACK, which no interpreter here runs."""
    register = {"$2": word}

    def value(name):
        return register[name] if name in register else int(name, 0)

    for line in filter(None, (line.strip(" {};") for line in text.splitlines())):
        name, *operands = line.replace(",", " ").split()
        if name == ".reg":
            continue
        to, *given = operands
        given = [value(operand) for operand in given]
        if name == "prmt.b32":
            assert given[1] == 0
            register[to] = permuted_bytes(given[0], given[2])
        elif name == "and.b32":
            register[to] = given[0] & given[1]
        elif name == "shr.u32":
            register[to] = given[0] >> given[1]
        else:
            assert name == "lop3.b32" and given[3] == (0xF0 & 0xCC | 0xAA), line
            register[to] = given[0] & given[1] | given[2]
    return register["$0"], register["$1"]


def test_unpacking_is_exact(module):
    """A user would miss: other weights than were given, on a GPU without an E4M3 instruction."""
    of = module("fp8_to_fp16")
    data = torch.arange(256, dtype=torch.uint8)
    words = [int.from_bytes(bytes(data[i : i + 4].tolist()), "little") for i in range(0, 256, 4)]
    pairs = [half for word in words for half in executed(of.UNPACK.value, word)]
    halves = torch.tensor([bits for pair in pairs for bits in (pair & 0xFFFF, pair >> 16)])
    got = halves.to(torch.uint16).view(torch.float16).float() * of.UNPACKED_SCALE
    want = data.view(torch.float8_e4m3fn).float()
    finite = want.isfinite()
    assert torch.equal(got[finite], want[finite]) and (got[~finite].abs() == 480).all()


# ---- tiles ----


@pytest.mark.parametrize("architecture", small.ARCHITECTURES)
def test_every_token_count_has_tiles(module, architecture):
    """A user would miss: an architecture that is listed, and refused above 256 tokens."""
    choose, most = module("choose_tiles").choose_many, ahead_of_time.MULTIPROCESSORS[architecture]
    for layer_key in manifest.read_manifest("mma_fused").definitions:
        of = catalogue.layer_sizes()[layer_key]
        sizes = of["num_local_experts"], of["hidden_size"], of["intermediate_size"]
        share = of["top_k"] / of["num_experts"]
        choices = {
            choose(architecture, "", most, sizes, share, t)
            for t in range(MOST_TOKENS + 1, 2**17, 97)
        }
        for gemm1, gemm2, *_ in choices:
            assert gemm1.block_m % gemm2.block_m == 0 and gemm1.programs and gemm2.programs
        if layer_key == "full":  # what test_mma_compile.py compiles are all of them
            assert choices == {
                choose(architecture, "", most, sizes, share, t) for t in small.MANY_TOKENS
            }
