"""What hopper_fused's kernels make of the caller's ids, or of logits, on the host, with a thread as
a fiber.
"""

import subprocess
from dataclasses import dataclass

import host_program
import numpy as np
import pytest
import stage_inputs
import stage_references
import torch

ATOM = 8  # rows that an expert's rows are padded to
ROW = np.dtype([("expert", "<i4"), ("token", "<i4"), ("weight", "<f4")])
# one word of experts; two, the second not full; sixteen, more than a CTA has threads, and top-k 10
IDS = ("deepseek-v3-ep8-routed", "glm-5.3-flash-ep8-routed", "qwen3.5-397b-routed")
# experts of a lane: eight, in groups; six; nine; five, of one rank; two, and some lanes have none
LOGITS = ("full", "hy3", "glm-5.3-flash-ep8", "qwen3-coder-480b", "small-renorm")

pytestmark = pytest.mark.xdist_group("take ids")  # one worker builds the programs


@dataclass
class Answer:
    """What the kernels make of the routing of a few tokens."""

    chosen: np.ndarray  # [T, E_local] bool
    weight: np.ndarray  # [T, E_local], NaN where none was written
    rows: np.ndarray | None  # of one launch, as ROW; token -1 in padding; None if it takes fewer


class Layer:
    """A definition's sizes, and the program that its sources make."""

    def __init__(self, layer_key, folder):
        sample = "hopper_take_ids.cc"
        self.sizes = stage_inputs.sizes(layer_key)
        self.num_local = self.sizes["num_local_experts"]
        self.program = host_program.of_packed("hopper_fused", layer_key, sample, folder)

    def ask(self, tokens, offset, *inputs):
        data = b"".join(array.tobytes() for array in inputs)
        command = [self.program, str(tokens), str(offset)]
        done = subprocess.run(command, input=data, capture_output=True, check=True)
        return self.parse(done.stdout, tokens)

    def parse(self, data, tokens):
        words = -(-self.num_local // 32)
        mask = np.frombuffer(data, "<u4", tokens * words).reshape(tokens, words)
        bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
        assert not bits[:, self.num_local :].any()

        weight = np.frombuffer(data, "<f4", tokens * self.num_local, offset=mask.nbytes)
        end = mask.nbytes + weight.nbytes
        count = np.frombuffer(data, "<i4", 1, offset=end)[0]
        rows = np.frombuffer(data, ROW, offset=end + 4)
        assert len(rows) == max(count, 0)
        chosen = bits[:, : self.num_local].astype(bool)
        return Answer(chosen, weight.reshape(chosen.shape), rows if count >= 0 else None)


@pytest.fixture(scope="module")
def layer(request, tmp_path_factory):
    return Layer(request.param, tmp_path_factory.mktemp(request.param))


takes_ids = pytest.mark.parametrize("layer", IDS, indirect=True)
takes_logits = pytest.mark.parametrize("layer", LOGITS, indirect=True)


def expected_weights(layer, ids, weights, offset):
    """Return [T, E_local] fp32: the sum of a token's weights of an expert, in order of slots; NaN
    where it has none.
    """
    expected = np.full((len(ids), layer.num_local), np.nan, np.float32)
    experts = ids.astype(np.int64) - offset
    for token, slot in np.ndindex(*experts.shape):
        expert = experts[token, slot]
        if 0 <= expert < layer.num_local:
            before = expected[token, expert]
            expected[token, expert] = weights[token, slot] + (0 if np.isnan(before) else before)
    return expected


def random_ids(layer, tokens, offset):
    """Return ids [T, k], of which some are not local, some extreme, some twice; and weights, NaN
    where the id is not local.
    """
    local = layer.num_local
    draw = np.random.default_rng(0)
    order = [draw.permutation(local)[: layer.sizes["top_k"]] for _ in range(tokens)]
    ids = offset + np.stack(order)
    ids[::3, 1] = -1
    ids[1::3, 2] = offset + local
    ids[2::3, 3] = offset - 1
    ids[::5, 4] = 2**31 - 1
    ids[1::5, 5] = -(2**31)
    ids[::4, -1] = ids[::4, 0]
    ids[7::16] = -1
    ids[8::16] = offset + local - 1

    weights = draw.random(ids.shape, dtype=np.float32)
    weights[(ids < offset) | (ids >= offset + local)] = np.nan
    return ids.clip(-(2**31), 2**31 - 1).astype("i4"), weights


def real_rows(answer):
    """Return the rows that are no padding. Checks that rows are by expert, then by token, each
    expert's padded to whole atoms.
    """
    expert, token = answer.chosen.T.nonzero()
    rows = answer.rows[answer.rows["token"] >= 0]
    assert np.array_equal(rows["expert"], expert)
    assert np.array_equal(rows["token"], token)

    rows_of_expert = np.bincount(expert, minlength=answer.chosen.shape[1])
    assert len(answer.rows) == (-(-rows_of_expert // ATOM) * ATOM).sum()
    return rows


@takes_ids
@pytest.mark.parametrize(("tokens", "offset"), [(1, 0), (33, 40), (60, 2**31 - 1 - 512)])
def test_ids_become_masks_weights_and_rows(layer, tokens, offset):
    """No row of an empty slot, or of another rank's id; one of an expert twice."""
    ids, weights = random_ids(layer, tokens, offset)
    expected = expected_weights(layer, ids, weights, offset)
    assert not np.isnan(expected).all()

    answer = layer.ask(tokens, offset, ids, weights)

    assert np.array_equal(answer.chosen, ~np.isnan(expected))
    assert np.array_equal(answer.weight, expected, equal_nan=True)
    assert np.array_equal(real_rows(answer)["weight"], expected.T[answer.chosen.T])


@takes_ids
def test_more_tokens_than_one_launch_takes(layer):
    ids, weights = random_ids(layer, 300, 0)
    answer = layer.ask(300, 0, ids, weights)
    assert answer.rows is None
    expected = expected_weights(layer, ids, weights, 0)
    assert np.array_equal(answer.weight, expected, equal_nan=True)
    assert np.array_equal(answer.chosen, ~np.isnan(expected))


def as_bytes(tensor):
    return tensor.view(torch.uint8).numpy()


@takes_logits
def test_logits_become_masks_weights_and_rows(layer):
    sizes = layer.sizes | {"hidden_size": 128}
    arguments = stage_inputs.tokens(sizes, 31, "cpu")
    logits = as_bytes(arguments["routing_logits"])
    bias = as_bytes(arguments["routing_bias"])
    expected, expected_weight = stage_references.reference_choice(layer.sizes, arguments)

    answer = layer.ask(31, arguments["local_expert_offset"], logits, bias)

    assert np.array_equal(answer.chosen, expected)
    assert np.array_equal(answer.chosen, ~np.isnan(answer.weight))
    assert np.allclose(answer.weight, expected_weight, rtol=1e-5, equal_nan=True)
    real_rows(answer)


@takes_logits
def test_of_equal_experts_and_groups_the_lower_ones_are_chosen(layer):
    arguments = stage_inputs.tokens(layer.sizes | {"hidden_size": 128}, 1, "cpu")
    offset = arguments["local_expert_offset"]
    logits = torch.zeros_like(arguments["routing_logits"])
    bias = torch.zeros_like(arguments["routing_bias"])

    answer = layer.ask(1, offset, as_bytes(logits), as_bytes(bias))

    first = np.arange(layer.num_local) + offset < layer.sizes["top_k"]
    assert np.array_equal(answer.chosen[0], first)
