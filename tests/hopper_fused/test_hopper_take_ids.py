"""What hopper_fused's kernels make of the caller's ids, or of logits, on the host, with a thread as
a fiber.
"""

import io
import subprocess
from dataclasses import dataclass

import host_program
import numpy as np
import pytest
import stage_inputs
import stage_references
import torch
from every_solution import slow
from host_program import take

INT32 = np.iinfo(np.int32)
ATOM = 8  # rows that an expert's rows are padded to
ROW = np.dtype([("expert", "<i4"), ("token", "<i4"), ("weight", "<f4")])
# one word of experts; two, the second not full; sixteen, more than a CTA has threads, and top-k 10
IDS = ("deepseek-v3-ep8-routed", "glm-5.3-flash-ep8-routed", "qwen3.5-397b-routed")
# experts of a lane: eight, in groups; two, and some lanes have none; six; nine; five, of one rank
LOGITS = [
    "full",
    "small-renorm",
    *map(slow, ["hy3", "glm-5.3-flash-ep8", "qwen3-coder-480b"]),
]

pytestmark = pytest.mark.xdist_group("take ids")  # one worker builds the programs


@dataclass
class Answer:
    """What the kernels make of the routing of a few tokens."""

    chosen: np.ndarray  # [T, E_local] bool
    weight: np.ndarray  # [T, E_local], NaN where none was written
    # of one launch, as ROW; token -1 in padding; None if it takes fewer
    rows: np.ndarray | None


def round_up(values, multiple):
    return -(-values // multiple) * multiple


class Layer:
    """A definition's sizes, and the program that its sources make."""

    def __init__(self, layer_key, folder):
        sample = "hopper_take_ids.cc"
        self.sizes = stage_inputs.sizes(layer_key)
        self.num_local = self.sizes["num_local_experts"]
        self.top_k = self.sizes["top_k"]
        self.program = host_program.build_packed(
            "hopper_fused", layer_key, sample, folder
        )

    def ask(self, tokens, offset, *inputs):
        data = b"".join(array.tobytes() for array in inputs)
        command = [self.program, str(tokens), str(offset)]
        output = subprocess.check_output(command, input=data)
        return self.parse(io.BytesIO(output), tokens)

    def parse(self, data, tokens):
        bytes_of_words = round_up(self.num_local, 32) // 8
        mask = take(data, np.uint8, tokens, bytes_of_words)
        bits = np.unpackbits(mask, axis=1, bitorder="little").astype(bool)
        chosen, beyond = np.split(bits, [self.num_local], axis=1)
        assert not beyond.any()

        weight = take(data, "<f4", tokens, self.num_local)
        (count,) = take(data, "<i4", 1)
        rows = None
        if count >= 0:
            rows = take(data, ROW, count)
        assert not data.read()
        return Answer(chosen, weight, rows)


@pytest.fixture(scope="module")
def layer(request, tmp_path_factory):
    return Layer(request.param, tmp_path_factory.mktemp(request.param))


takes_ids = pytest.mark.parametrize("layer", IDS, indirect=True)
takes_logits = pytest.mark.parametrize("layer", LOGITS, indirect=True)


def expected_weights(layer, ids, weights, offset):
    """Return [T, E_local] fp32: the sum of a token's weights of an expert, in order of slots; NaN
    where it has none.
    """
    shape = (len(ids), layer.num_local)
    total = np.zeros(shape, np.float32)
    is_chosen = np.zeros(shape, bool)

    experts = ids.astype(np.int64) - offset
    is_local = (experts >= 0) & (experts < layer.num_local)
    for token, slot in np.argwhere(is_local):
        expert = experts[token, slot]
        total[token, expert] += weights[token, slot]
        is_chosen[token, expert] = True
    return np.where(is_chosen, total, np.float32(np.nan))


def random_ids(layer, tokens, offset):
    """Return ids [T, k], of which some are not local, some extreme, some twice; and weights, NaN
    where the id is not local.
    """
    draw = np.random.default_rng(0)
    end = offset + layer.num_local
    local_ids = np.arange(offset, end)
    order = draw.permuted(np.tile(local_ids, (tokens, 1)), axis=1)
    ids = order[:, : layer.top_k]
    ids[::4, -1] = ids[::4, 0]
    spoil_some(ids, offset, end)

    weights = draw.random(ids.shape, dtype=np.float32)
    is_local = np.isin(ids, local_ids)
    weights[~is_local] = np.nan

    ids = ids.clip(INT32.min, INT32.max)
    return ids.astype(np.int32), weights


def spoil_some(ids, offset, end):
    """Put ids that are no local expert's into some slots, and the same into all of some tokens."""
    ids[::3, 1] = -1
    ids[1::3, 2] = end
    ids[2::3, 3] = offset - 1
    ids[::5, 4] = INT32.max
    ids[1::5, 5] = INT32.min
    ids[7::16] = -1
    ids[8::16] = end - 1


def real_rows(answer):
    """Return the rows that are no padding. Checks that rows are by expert, then by token, each
    expert's padded to whole atoms.
    """
    expert, token = answer.chosen.T.nonzero()
    rows = answer.rows[answer.rows["token"] >= 0]
    assert np.array_equal(rows["expert"], expert)
    assert np.array_equal(rows["token"], token)

    rows_of_expert = answer.chosen.sum(axis=0)
    padded_rows = round_up(rows_of_expert, ATOM)
    assert len(answer.rows) == padded_rows.sum()
    return rows


def assert_same_choice(answer, expected):
    """Check weights [T, E_local], NaN where an expert is not chosen, bit for bit."""
    assert np.array_equal(answer.chosen, ~np.isnan(expected))
    assert np.array_equal(answer.weight, expected, equal_nan=True)


@takes_ids
@pytest.mark.parametrize(
    ("tokens", "offset"), [(1, 0), (33, 40), (60, 2**31 - 1 - 512)]
)
def test_ids_become_masks_weights_and_rows(layer, tokens, offset):
    """No row of an empty slot, or of another rank's id; one of an expert twice."""
    ids, weights = random_ids(layer, tokens, offset)
    expected = expected_weights(layer, ids, weights, offset)
    assert not np.isnan(expected).all()

    answer = layer.ask(tokens, offset, ids, weights)

    assert_same_choice(answer, expected)
    by_expert = expected.T
    row_weights = by_expert[~np.isnan(by_expert)]
    assert np.array_equal(real_rows(answer)["weight"], row_weights)


@takes_ids
def test_more_tokens_than_one_launch_takes(layer):
    ids, weights = random_ids(layer, 300, 0)
    answer = layer.ask(300, 0, ids, weights)
    assert answer.rows is None
    assert_same_choice(answer, expected_weights(layer, ids, weights, 0))


def routing_arguments(layer, num_tokens):
    """Return the layer's arguments, of tokens that are short, as nothing reads them."""
    sizes = layer.sizes | {"hidden_size": 128}
    return stage_inputs.tokens(sizes, num_tokens, "cpu")


def routing_arrays(arguments):
    """Return logits and bias as arrays of bytes."""
    logits = arguments["routing_logits"].view(torch.uint8)
    bias = arguments["routing_bias"].view(torch.uint8)
    return [logits.numpy(), bias.numpy()]


@takes_logits
def test_logits_become_masks_weights_and_rows(layer):
    arguments = routing_arguments(layer, 31)
    expected, expected_weight = stage_references.reference_choice(
        layer.sizes, arguments
    )

    answer = layer.ask(31, arguments["local_expert_offset"], *routing_arrays(arguments))

    assert np.array_equal(answer.chosen, expected)
    assert np.array_equal(answer.chosen, ~np.isnan(answer.weight))
    assert np.allclose(answer.weight, expected_weight, rtol=1e-5, equal_nan=True)
    real_rows(answer)


@takes_logits
def test_of_equal_experts_and_groups_the_lower_ones_are_chosen(layer):
    arguments = routing_arguments(layer, 1)
    arguments["routing_logits"].zero_()
    arguments["routing_bias"].zero_()
    offset = arguments["local_expert_offset"]

    answer = layer.ask(1, offset, *routing_arrays(arguments))

    expert = np.arange(layer.num_local) + offset
    assert np.array_equal(answer.chosen[0], expert < layer.top_k)
