"""hopper_fused with top-k given: what its kernels make of the caller's ids, on the host, with a thread as a fiber."""

import subprocess
from collections import namedtuple

import host_program
import numpy as np
import pytest
from harness.operators import catalogue

ATOM = 8  # rows that an expert's rows are padded to
# one word of experts; four, and top-k 10; twelve
GEOMETRIES = ("deepseek-v3-ep8-routed", "qwen3-next-routed", pytest.param("kimi-k2-ep1-routed", marks=pytest.mark.slow))

pytestmark = pytest.mark.xdist_group("take ids")  # one worker builds the programs


@pytest.fixture(scope="module", params=GEOMETRIES)
def layer(request, tmp_path_factory):
    """A definition's sizes, and the program that its sources make."""
    built = ("hopper_fused", request.param, "hopper_take_ids.cc", tmp_path_factory.mktemp(request.param))
    return catalogue.GEOMETRIES[request.param], host_program.of_packed(*built)


Rows = namedtuple("Rows", "expert token weight")  # of one launch, [rows]; token -1 in padding


def ask(layer, ids, weights, offset):
    """chosen [T, E_local] bool, weight [T, E_local], NaN where none was written, and Rows; None if it takes fewer."""
    of, program = layer
    local, words = of["num_local_experts"], -(-of["num_local_experts"] // 32)
    data = ids.astype("i4").tobytes() + weights.astype("f4").tobytes()
    done = subprocess.run([program, str(len(ids)), str(offset)], input=data, capture_output=True, check=True).stdout
    mask = np.frombuffer(done, "<u4", len(ids) * words).reshape(len(ids), words)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, local:].any()
    weight = np.frombuffer(done, "<f4", len(ids) * local, offset=mask.nbytes).reshape(len(ids), local)
    count, *_ = np.frombuffer(done, "<i4", 1, offset=mask.nbytes + weight.nbytes)
    rest = done[mask.nbytes + weight.nbytes + 4 :]
    rows = np.frombuffer(rest, np.dtype([("expert", "<i4"), ("token", "<i4"), ("weight", "<f4")]))
    assert len(rows) == max(count, 0)
    return bits[:, :local].astype(bool), weight, Rows(*(rows[name] for name in Rows._fields)) if count >= 0 else None


def wanted(of, ids, weights, offset):
    """[T, E_local] fp32: the sum of a token's weights of an expert, in order of slots; NaN where it has none."""
    want = np.full((len(ids), of["num_local_experts"]), np.nan, np.float32)
    expert = ids.astype(np.int64) - offset
    for token, slot in zip(*((expert >= 0) & (expert < want.shape[1])).nonzero(), strict=True):
        at = token, expert[token, slot]
        want[at] = weights[token, slot] + (0 if np.isnan(want[at]) else want[at])
    return want


def drawn(of, tokens, offset):
    """ids [T, k], of which some are not local, some extreme, some twice; and weights, NaN where the id is not local."""
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
    return ids.clip(-(2**31), 2**31 - 1), weights


@pytest.mark.parametrize(("tokens", "offset"), [(1, 0), (33, 40), (60, 2**31 - 1 - 384)])
def test_ids_become_masks_weights_and_rows(layer, tokens, offset):
    """A user would miss: an empty slot, or an id of another rank, that becomes a row; an expert twice counted once."""
    of, _ = layer
    ids, weights = drawn(of, tokens, offset)
    want = wanted(of, ids, weights, offset)
    chosen, weight, rows = ask(layer, ids, weights, offset)
    assert (~np.isnan(want)).any() and np.array_equal(chosen, ~np.isnan(want))
    assert np.array_equal(weight, want, equal_nan=True)
    expert, token = (~np.isnan(want)).T.nonzero()  # by expert, then by token
    real = rows.token >= 0
    assert np.array_equal(rows.expert[real], expert) and np.array_equal(rows.token[real], token)
    assert np.array_equal(rows.weight[real], want[token, expert])
    per_expert = np.bincount(expert, minlength=of["num_local_experts"])
    assert len(rows.token) == (-(-per_expert // ATOM) * ATOM).sum()


def test_more_tokens_than_one_launch_takes(layer):
    """As above, where rows are not listed by one launch."""
    of, _ = layer
    ids, weights = drawn(of, 300, 0)
    chosen, weight, rows = ask(layer, ids, weights, 0)
    assert rows is None and np.array_equal(weight, wanted(of, ids, weights, 0), equal_nan=True)
    assert np.array_equal(chosen, ~np.isnan(weight))
