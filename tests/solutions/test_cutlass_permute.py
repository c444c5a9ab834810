"""cutlass_grouped's routing and permutation on the host: its headers compiled as C++, with a thread
as a fiber.
"""

import io
import subprocess
from collections import namedtuple
from functools import cache

import host_program
import numpy as np
import pytest
import torch
from moebench.operators import catalogue

BLOCK = 128
GEOMETRIES = ("kimi-k2-ep1", "qwen3-next")  # 384 local experts; top-k 10 with renorm routing
# among them 48 local experts (no whole words of 32), 16 of 256
OTHERS = [name for name in catalogue.FP8_MOE if name in catalogue.FULL and name not in GEOMETRIES]
ALL = [*GEOMETRIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
MOST = 1 << 14  # rows, more than any call here has
FACTOR = 2.5

pytestmark = pytest.mark.xdist_group("cutlass permute")  # one worker builds the programs

Group = namedtuple("Group", "problem activations weights result row_scale block_scale strides")
Window = namedtuple("Window", "num_rows all_rows gemm1 gemm2 expert_rows x x_scale")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Geometry -> the program."""

    @cache
    def get(geometry):
        return host_program.of_packed(
            "cutlass_grouped", geometry, "cutlass_permute.cc", tmp_path_factory.mktemp(geometry)
        )

    return get


class Call:
    """Inputs of a call, and for each local expert its tokens and their weights by the definition's
    own routing.
    """

    def __init__(self, geometry, tokens, seed=0):
        self.of = of = catalogue.GEOMETRIES[geometry]
        self.renorm = geometry in catalogue.RENORM
        generator = torch.Generator().manual_seed(seed)
        experts, local = of["num_experts"], of["num_local_experts"]
        # different numbers that bf16 holds, as ties are free
        order = torch.rand(tokens, experts, generator=generator).argsort(1)
        self.logits = (order.float() - experts / 2) / 64
        self.bias = (0.01 * torch.randn(experts, generator=generator)).bfloat16()
        self.x = torch.randint(
            0, 256, (tokens, of["hidden_size"]), dtype=torch.uint8, generator=generator
        ).numpy()
        self.x_scale = torch.randn(of["hidden_size"] // BLOCK, tokens, generator=generator).numpy()
        self.offset = (experts - local) // 2 // 8 * 8
        if self.renorm:
            self.logits = self.logits.bfloat16()
        routing = (self.logits,) if self.renorm else (self.logits, self.bias, FACTOR)
        chosen, weights = catalogue.router(geometry)(*routing)
        weight = (
            torch.zeros(tokens, experts)
            .scatter_(1, chosen, weights)[:, self.offset : self.offset + local]
            .numpy()
        )
        has = (
            torch.zeros(tokens, experts)
            .scatter_(1, chosen, 1.0)[:, self.offset : self.offset + local]
            .numpy()
            > 0
        )
        self.tokens_of = [np.flatnonzero(has[:, e]) for e in range(local)]
        self.weight = weight

    def ask(self, program, window, swap_ab=False, by_row=False):
        """Windows and pairs that the program makes."""
        tokens = len(self.x)
        question = [tokens, self.offset, FACTOR, window, int(swap_ab), int(by_row)]
        given = [self.logits, *([] if self.renorm else [self.bias])]
        data = b"".join(t.view(torch.uint8).numpy().tobytes() for t in given)
        data += self.x.tobytes() + self.x_scale.tobytes()
        done = subprocess.run(
            [program, *map(str, question)], input=data, capture_output=True, check=True
        )
        answer = io.BytesIO(done.stdout)

        def take(dtype, *shape):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            return np.frombuffer(answer.read(size), dtype).reshape(shape)

        local, hidden = self.of["num_local_experts"], self.of["hidden_size"]
        groups = [
            lambda: take("i4", local, 3),
            *[lambda: take("i8", local)] * 5,
            lambda: take("i8", 3, local),
        ]
        windows = []
        for _ in range(0, tokens * min(self.of["top_k"], local), window):
            rows, all_rows = take("i4", 2)
            tables = [Group(*(part() for part in groups)) for _ in range(2)]
            arrays = (
                take("i4", rows, 2),
                take("u1", rows, hidden),
                take("f4", rows * (hidden // BLOCK)),
            )
            windows.append(Window(rows, all_rows, *tables, *arrays))
        pairs = take(np.dtype([("row", "i4"), ("weight", "f4")]), tokens, self.of["top_k"])
        assert not answer.read()
        return windows, pairs


def check_group(group, first, rows, n, k, swap_ab):
    """The table of a GEMM: expert e has rows[e] rows from first[e] on."""
    local = np.arange(len(first))
    problem = np.stack([np.full_like(rows, n), rows, np.full_like(rows, k)], 1)
    assert (group.problem == (problem if swap_ab else problem[:, [1, 0, 2]])).all()
    assert (group.activations == first * k).all()
    assert (group.weights == local * n * k).all()
    assert (group.result == first * n * 2).all(), "bf16"
    assert (group.row_scale == first * (k // BLOCK) * 4).all()
    assert (group.block_scale == local * (n // BLOCK) * (k // BLOCK) * 4).all()
    assert (group.strides == [[k], [k], [n]]).all()


def check(call, windows, pairs, window, swap_ab=False, by_row=False):
    """Everything that permute leaves, against the tokens of each expert."""
    of, steps = call.of, call.of["hidden_size"] // BLOCK
    tokens = np.concatenate(call.tokens_of)  # of all rows, in expert order
    ends = np.cumsum([len(some) for some in call.tokens_of])
    starts = ends - [len(some) for some in call.tokens_of]
    for number, made in enumerate(windows):
        begin = number * window
        first = np.clip(starts - begin, 0, window)
        rows = np.clip(ends - begin, 0, window) - first
        assert (made.num_rows, made.all_rows) == (rows.sum(), len(tokens))
        check_group(
            made.gemm1, first, rows, 2 * of["intermediate_size"], of["hidden_size"], swap_ab
        )
        check_group(made.gemm2, first, rows, of["hidden_size"], of["intermediate_size"], swap_ab)
        assert (made.expert_rows == np.repeat(np.stack([first, rows], 1), rows, axis=0)).all()
        here = tokens[begin : begin + window]
        assert (made.x == call.x[here]).all()
        scales = [
            call.x_scale[:, here[at : at + count]] for at, count in zip(first, rows, strict=True)
        ]
        wanted = np.concatenate([(part.T if by_row else part).ravel() for part in scales])
        assert len(wanted) == made.num_rows * steps and (made.x_scale == wanted).all()

    expert = np.repeat(np.arange(len(ends)), ends - starts)
    for token, pair in enumerate(pairs):
        rows = np.flatnonzero(tokens == token)
        assert pair["row"].tolist() == [*rows, *[-1] * (len(pair) - len(rows))]
        assert pair["weight"][: len(rows)] == pytest.approx(
            call.weight[token, expert[rows]], rel=1e-5
        )


@pytest.mark.parametrize(
    "tokens", [1, 16, 33, 70]
)  # in permute; either way with 384 experts; in a kernel of its own
@pytest.mark.parametrize("geometry", ALL)
def test_rows_are_where_the_gemms_and_combine_look(program, geometry, tokens):
    """Rows of another token or expert, at a number of experts that has no GPU
    test.
    """
    call = Call(geometry, tokens)
    windows, pairs = call.ask(program(geometry), MOST)
    check(call, windows, pairs, MOST)


@pytest.mark.parametrize(
    ("geometry", "window"), [*((name, 128) for name in GEOMETRIES), ("kimi-k2-ep8", 100)]
)
def test_windows_share_the_rows(program, geometry, window):
    """Wrong sums above the tokens whose rows fit scratch, or rows of a window
    added twice.
    """
    call = Call(geometry, 65)
    windows, pairs = call.ask(program(geometry), window)
    filled = [made.num_rows > 0 for made in windows]
    assert len(windows) > 4 and filled == sorted(filled, reverse=True)
    assert geometry in GEOMETRIES or not filled[-1], "one is empty"
    check(call, windows, pairs, window)


@pytest.mark.parametrize(("swap_ab", "by_row"), [(True, False), (False, True)])
def test_tables_suit_swap_ab_tiles_and_scales_by_row(program, swap_ab, by_row):
    """Sums of the wrong operand, or scales of other rows, with some tiles
    only.
    """
    call = Call("qwen3-next", 40)
    windows, pairs = call.ask(program("qwen3-next"), MOST, swap_ab, by_row)
    check(call, windows, pairs, MOST, swap_ab, by_row)
