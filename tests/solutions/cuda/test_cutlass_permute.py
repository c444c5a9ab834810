"""cutlass_grouped's routing and permutation on the host: its headers compiled as C++, with a thread
as a fiber.
"""

import io
import subprocess
from dataclasses import dataclass
from functools import cache

import host_program
import numpy as np
import pytest
import torch
from every_solution import slow
from host_program import take
from moebench.operators import catalogue
from random_values import Draw

BLOCK = 128
# 384 local experts; top-k 10 with renorm routing
LAYER_SIZES = ("kimi-k2-ep1", "qwen3-next")
OTHERS = ("kimi-k2-ep8", "full", "minimax-m2")  # 48 local experts: no whole words of 32
MOST = 1 << 14  # rows, more than any call here has
FACTOR = 2.5
PAIR = np.dtype([("row", "i4"), ("weight", "f4")])

# one worker builds the programs
pytestmark = pytest.mark.xdist_group("cutlass permute")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A function of a layer key that returns the program."""

    @cache
    def get(layer_key):
        folder = tmp_path_factory.mktemp(layer_key)
        return host_program.build_packed(
            "cutlass_grouped", layer_key, "cutlass_permute.cc", folder
        )

    return get


def table_type(local):
    """Return what a grouped GEMM is told of each of so many local experts; addresses count from the
    operands' starts.
    """
    fields = [
        ("problem", "i4", (local, 3)),
        ("activations", "i8", local),
        ("weights", "i8", local),
        ("result", "i8", local),
        ("row_scale", "i8", local),
        ("block_scale", "i8", local),
        ("strides", "i8", (3, local)),
    ]
    return np.dtype(fields)


@dataclass
class Window:
    """Rows that scratch holds at a time."""

    num_rows: int
    all_rows: int
    gemm1: np.void  # of table_type
    gemm2: np.void
    expert_rows: np.ndarray
    x: np.ndarray
    x_scale: np.ndarray


@dataclass
class Options:
    """How rows are wanted: at most `window` at a time, operands swapped, scales row by row."""

    window: int = MOST
    swap_ab: bool = False
    by_row: bool = False


def take_window(data, local, hidden):
    num_rows, all_rows = take(data, "i4", 2)
    gemm1, gemm2 = take(data, table_type(local), 2)
    expert_rows = take(data, "i4", num_rows, 2)
    x = take(data, "u1", num_rows, hidden)
    x_scale = take(data, "f4", num_rows * (hidden // BLOCK))
    return Window(num_rows, all_rows, gemm1, gemm2, expert_rows, x, x_scale)


class Call:
    """Inputs of a call, and for each local expert its tokens by the definition's own routing."""

    def __init__(self, layer_key, num_tokens):
        sizes = catalogue.layer_sizes()[layer_key]
        self.num_tokens = num_tokens
        self.hidden = sizes["hidden_size"]
        self.inter = sizes["intermediate_size"]
        self.top_k = sizes["top_k"]
        self.experts = sizes["num_experts"]
        self.local = sizes["num_local_experts"]
        self.offset = (self.experts - self.local) // 2 // 8 * 8

        draw = Draw("cpu")
        self.routing = self.random_routing(draw, layer_key)
        x = draw.integers(0, 256, num_tokens, self.hidden, dtype=torch.uint8)
        x_scale = draw.normal(self.hidden // BLOCK, num_tokens)
        self.x = x.numpy()
        self.x_scale = x_scale.numpy()
        self.weight = self.rank_weights(layer_key)  # [T, E_local], NaN where not chosen

        # of every row, in expert order
        is_chosen = ~np.isnan(self.weight)
        self.expert_of_row, self.tokens = is_chosen.T.nonzero()
        self.counts = is_chosen.sum(axis=0)  # rows of each expert

    def random_routing(self, draw, layer_key):
        # different numbers that bf16 holds, as ties are free
        order = draw.order(self.num_tokens, self.experts)
        logits = (order.float() - self.experts / 2) / 64
        if layer_key in catalogue.renorm():
            return [logits.bfloat16()]
        bias = 0.01 * draw.normal(self.experts)
        return [logits, bias.bfloat16()]

    def rank_weights(self, layer_key):
        route = catalogue.router(layer_key)
        if layer_key in catalogue.renorm():
            chosen, weights = route(*self.routing)
        else:
            chosen, weights = route(*self.routing, FACTOR)

        all_weights = torch.full((self.num_tokens, self.experts), torch.nan)
        all_weights.scatter_(1, chosen, weights.float())
        return all_weights.narrow(1, self.offset, self.local).numpy()

    def rows_in_window(self, begin, window):
        """Return for each expert its first row in a window that begins at a row, and its rows
        there.
        """
        ends = self.counts.cumsum()
        starts = ends - self.counts
        first = np.clip(starts - begin, 0, window)
        last = np.clip(ends - begin, 0, window)
        return first, last - first

    def to_bytes(self):
        """Return what the program reads."""
        arrays = [tensor.view(torch.uint8).numpy() for tensor in self.routing]
        arrays += [self.x, self.x_scale]
        return b"".join(array.tobytes() for array in arrays)

    def run(self, program, options):
        """Return the windows and the pairs that the program makes."""
        numbers = [
            self.num_tokens,
            self.offset,
            FACTOR,
            options.window,
            int(options.swap_ab),
            int(options.by_row),
        ]
        command = [program, *map(str, numbers)]
        output = subprocess.check_output(command, input=self.to_bytes())

        answer = io.BytesIO(output)
        most_rows = self.num_tokens * min(self.top_k, self.local)
        windows = []
        for _ in range(0, most_rows, options.window):
            windows.append(take_window(answer, self.local, self.hidden))
        pairs = take(answer, PAIR, self.num_tokens, self.top_k)
        assert not answer.read()
        return windows, pairs


def check_table(table, first, rows, shape, swap_ab):
    """Check the table of a GEMM: expert e has rows[e] rows from first[e] on. shape: columns and
    depth.
    """
    n, k = shape
    n_blocks = n // BLOCK
    k_blocks = k // BLOCK
    expert = np.arange(len(first))
    problem = (n, rows, k) if swap_ab else (rows, n, k)
    expected = {
        "problem": np.stack(np.broadcast_arrays(*problem), axis=1),
        "activations": first * k,
        "weights": expert * n * k,
        "result": first * n * 2,  # bf16
        "row_scale": first * k_blocks * 4,
        "block_scale": expert * n_blocks * k_blocks * 4,
        "strides": [[k], [k], [n]],
    }
    for name, values in expected.items():
        assert (table[name] == values).all(), name


def check_window(call, window, begin, options):
    """Check a window that begins at a row against the tokens of each expert."""
    first, rows = call.rows_in_window(begin, options.window)
    assert window.num_rows == rows.sum()
    assert window.all_rows == len(call.tokens)

    swap_ab = options.swap_ab
    gemm1_shape = (2 * call.inter, call.hidden)
    gemm2_shape = (call.hidden, call.inter)
    check_table(window.gemm1, first, rows, gemm1_shape, swap_ab)
    check_table(window.gemm2, first, rows, gemm2_shape, swap_ab)

    experts = np.stack([first, rows], 1)
    expert_rows = np.repeat(experts, rows, axis=0)
    assert np.array_equal(window.expert_rows, expert_rows)

    end = begin + options.window
    tokens = call.tokens[begin:end]
    x_scale = call.x_scale[:, tokens]
    scales = expected_scales(x_scale, first, rows, options.by_row)
    assert np.array_equal(window.x, call.x[tokens])
    assert np.array_equal(window.x_scale, scales)


def expected_scales(scale, first, rows, by_row):
    """Return the scales [H / 128, rows] of each expert, one expert after the other.

    by_row: whether the scales of a row lie together, or those of a block.
    """
    order = "F" if by_row else "C"
    parts = []
    for start, end in zip(first, first + rows, strict=True):
        expert_scale = scale[:, start:end]
        parts.append(expert_scale.ravel(order))
    return np.concatenate(parts)


def check_pairs(call, pairs):
    """Check each token's rows, in order, and their weights."""
    for token, pair in enumerate(pairs):
        rows = np.flatnonzero(call.tokens == token)
        experts = call.expert_of_row[rows]
        weights = call.weight[token, experts]

        real, empty = np.split(pair, [len(rows)])
        assert np.array_equal(real["row"], rows)
        assert (empty["row"] == -1).all()
        assert real["weight"] == pytest.approx(weights, rel=1e-5)


def check(call, program, options):
    """Check everything that permute leaves; return the windows."""
    windows, pairs = call.run(program, options)
    for number, window in enumerate(windows):
        check_window(call, window, number * options.window, options)
    check_pairs(call, pairs)
    return windows


# in permute; either way with 384 experts; in a kernel of its own
@pytest.mark.parametrize("num_tokens", [1, 16, 33, 70])
@pytest.mark.parametrize("layer_key", [*LAYER_SIZES, *map(slow, OTHERS)])
def test_rows_are_where_the_gemms_and_combine_look(program, layer_key, num_tokens):
    """Catches rows of another token or expert, at a number of experts that has no GPU test."""
    call = Call(layer_key, num_tokens)
    check(call, program(layer_key), Options())


@pytest.mark.parametrize(
    ("layer_key", "window"),
    [("kimi-k2-ep1", 128), ("qwen3-next", 128), ("kimi-k2-ep8", 100)],
)
def test_windows_share_the_rows(program, layer_key, window):
    """Catches wrong sums where the rows do not fit scratch, or rows of a window added twice."""
    call = Call(layer_key, 65)
    windows = check(call, program(layer_key), Options(window=window))

    assert len(windows) > 4
    last_has_rows = windows[-1].num_rows > 0
    # the other's last ones are empty
    assert last_has_rows == (layer_key in LAYER_SIZES)


@pytest.mark.parametrize(
    "options", [Options(swap_ab=True), Options(by_row=True)], ids=str
)
def test_tables_suit_swap_ab_tiles_and_scales_by_row(program, options):
    """Catches sums of the wrong operand, or scales of other rows, with some tiles only."""
    check(Call("qwen3-next", 40), program("qwen3-next"), options)
