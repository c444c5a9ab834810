"""What hopper_fused's kernels make of the caller's ids, or of logits, on the host, with a thread as
a fiber.
"""

import subprocess
from collections import namedtuple

import hopper_stages as stages
import host_program
import numpy as np
import pytest
import torch

ATOM = 8  # rows that an expert's rows are padded to
# one word of experts; two, the second not full; sixteen, more than a CTA has threads, and top-k 10
IDS = ("deepseek-v3-ep8-routed", "glm-5.3-flash-ep8-routed", "qwen3.5-397b-routed")
# experts of a lane: eight, in groups; six; nine; five, of one rank; two, and some lanes have none
LOGITS = ("full", "hy3", "glm-5.3-flash-ep8", "qwen3-coder-480b", "small-renorm")

pytestmark = pytest.mark.xdist_group("take ids")  # one worker builds the programs


@pytest.fixture(scope="module")
def layer(request, tmp_path_factory):
    """A definition's sizes, and the program that its sources make."""
    built = (
        "hopper_fused",
        request.param,
        "hopper_take_ids.cc",
        tmp_path_factory.mktemp(request.param),
    )
    return stages.sizes(request.param), host_program.of_packed(*built)


of_ids = pytest.mark.parametrize("layer", IDS, indirect=True)
Rows = namedtuple("Rows", "expert token weight")  # of one launch, [rows]; token -1 in padding


def ask(layer, tokens, offset, *inputs):
    """chosen [T, E_local] bool, weight [T, E_local], NaN where none was written, and Rows; None if
    it takes fewer.
    """
    of, program = layer
    local, words = of["num_local_experts"], -(-of["num_local_experts"] // 32)
    data = b"".join(array.tobytes() for array in inputs)
    done = subprocess.run(
        [program, str(tokens), str(offset)], input=data, capture_output=True, check=True
    ).stdout
    mask = np.frombuffer(done, "<u4", tokens * words).reshape(tokens, words)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, local:].any()
    weight = np.frombuffer(done, "<f4", tokens * local, offset=mask.nbytes).reshape(tokens, local)
    count, *_ = np.frombuffer(done, "<i4", 1, offset=mask.nbytes + weight.nbytes)
    rest = done[mask.nbytes + weight.nbytes + 4 :]
    rows = np.frombuffer(rest, np.dtype([("expert", "<i4"), ("token", "<i4"), ("weight", "<f4")]))
    assert len(rows) == max(count, 0)
    return (
        bits[:, :local].astype(bool),
        weight,
        Rows(*(rows[name] for name in Rows._fields)) if count >= 0 else None,
    )


def wanted(of, ids, weights, offset):
    """[T, E_local] fp32: the sum of a token's weights of an expert, in order of slots; NaN where it
    has none.
    """
    want = np.full((len(ids), of["num_local_experts"]), np.nan, np.float32)
    expert = ids.astype(np.int64) - offset
    for token, slot in zip(*((expert >= 0) & (expert < want.shape[1])).nonzero(), strict=True):
        at = token, expert[token, slot]
        want[at] = weights[token, slot] + (0 if np.isnan(want[at]) else want[at])
    return want


def drawn(of, tokens, offset):
    """ids [T, k], of which some are not local, some extreme, some twice; and weights, NaN where the
    id is not local.
    """
    local, top_k = of["num_local_experts"], of["top_k"]
    draw = np.random.default_rng(0)
    ids = offset + np.stack([draw.permutation(local)[:top_k] for _ in range(tokens)])
    ids[::3, 1], ids[1::3, 2], ids[2::3, 3] = -1, offset + local, offset - 1
    ids[::5, 4], ids[1::5, 5] = 2**31 - 1, -(2**31)
    ids[::4, -1] = ids[::4, 0]
    ids[7::16] = -1
    ids[8::16] = offset + local - 1
    weights = draw.random(ids.shape, dtype=np.float32)
    weights[(ids < offset) | (ids >= offset + local)] = np.nan
    return ids.clip(-(2**31), 2**31 - 1).astype("i4"), weights


def check_rows(rows, chosen):
    """Rows by expert, then by token, each expert's padded to whole atoms. Returns which are no
    padding.
    """
    expert, token = chosen.T.nonzero()
    real = rows.token >= 0
    assert np.array_equal(rows.expert[real], expert) and np.array_equal(rows.token[real], token)
    per_expert = np.bincount(expert, minlength=chosen.shape[1])
    assert len(rows.token) == (-(-per_expert // ATOM) * ATOM).sum()
    return real


@of_ids
@pytest.mark.parametrize(("tokens", "offset"), [(1, 0), (33, 40), (60, 2**31 - 1 - 512)])
def test_ids_become_masks_weights_and_rows(layer, tokens, offset):
    """A user would miss: an empty slot, or an id of another rank, that becomes a row; an expert
    twice counted once.
    """
    ids, weights = drawn(layer[0], tokens, offset)
    want = wanted(layer[0], ids, weights, offset)
    chosen, weight, rows = ask(layer, tokens, offset, ids, weights)
    assert (~np.isnan(want)).any() and np.array_equal(chosen, ~np.isnan(want))
    assert np.array_equal(weight, want, equal_nan=True)
    assert np.array_equal(rows.weight[check_rows(rows, chosen)], want.T[chosen.T])


@of_ids
def test_more_tokens_than_one_launch_takes(layer):
    """As above, where rows are not listed by one launch."""
    ids, weights = drawn(layer[0], 300, 0)
    chosen, weight, rows = ask(layer, 300, 0, ids, weights)
    assert rows is None and np.array_equal(
        weight, wanted(layer[0], ids, weights, 0), equal_nan=True
    )
    assert np.array_equal(chosen, ~np.isnan(weight))


@pytest.mark.parametrize("layer", LOGITS, indirect=True)
def test_logits_become_masks_weights_and_rows(layer):
    """A user would miss: other experts or weights than the router's, where experts are no multiple
    of 128.
    """
    of, tokens = layer[0], 31
    arguments = stages.tokens(of | {"hidden_size": 128}, tokens, "cpu")
    logits, bias = arguments["routing_logits"], arguments["routing_bias"]
    logits[-1] = 0  # of equal experts, and of equal groups, the lower ones are chosen
    want, want_weight = stages.reference_choice(of, arguments)
    offset = arguments["local_expert_offset"]
    first = torch.arange(of["num_local_experts"]) + offset < of["top_k"]
    inputs = (array.view(torch.uint8).numpy() for array in (logits, torch.zeros_like(bias)))
    assert np.array_equal(ask(layer, tokens, offset, *inputs)[0][-1], first)
    inputs = (array.view(torch.uint8).numpy() for array in (logits, bias))
    chosen, weight, rows = ask(layer, tokens, offset, *inputs)
    assert np.array_equal(chosen[:-1], want[:-1]) and np.array_equal(chosen, ~np.isnan(weight))
    assert np.allclose(weight[:-1], want_weight[:-1], rtol=1e-5, equal_nan=True)
    check_rows(rows, chosen)
