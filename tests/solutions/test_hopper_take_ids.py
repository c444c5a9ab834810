"""hopper_fused behind a router: what a warp makes of a token's ids, on the host, with a warp as 32 fibers."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from harness.operators import catalogue
from harness.packing import pack

SAMPLES = Path(__file__).parents[1] / "samples"
# one word of experts; twelve; top-k 10
GEOMETRIES = ("deepseek-v3-ep8-routed", "kimi-k2-ep1-routed", "qwen3-next-routed")


@pytest.fixture(scope="module", params=GEOMETRIES)
def layer(request, tmp_path_factory):
    """A definition's sizes, and the program that its sources make."""
    folder = tmp_path_factory.mktemp(request.param)
    for source in pack.pack("hopper_fused")[request.param].sources:
        if source.path.endswith(".cuh"):
            (folder / Path(source.path).name).write_text(source.content)
    program = folder / "take_ids"
    includes = [f"-I{SAMPLES / 'cuda_on_host'}", f"-I{folder}"]
    command = ["c++", "-std=c++17", "-O1", "-Wno-attributes", *includes, SAMPLES / "hopper_take_ids.cc"]
    subprocess.run([*command, "-o", program], check=True)
    return catalogue.GEOMETRIES[request.param], program


def ask(layer, ids, weights, offset):
    """chosen [T, E_local] bool and weight [T, E_local], NaN where none was written."""
    of, program = layer
    data = ids.astype("i4").tobytes() + weights.astype("f4").tobytes()
    done = subprocess.run([program, str(len(ids)), str(offset)], input=data, capture_output=True, check=True)
    words = -(-of["num_local_experts"] // 32)
    mask = np.frombuffer(done.stdout, "<u4", len(ids) * words).reshape(len(ids), words)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    weight = np.frombuffer(done.stdout, "<f4", offset=mask.nbytes).reshape(len(ids), -1)
    assert not bits[:, of["num_local_experts"] :].any()
    return bits[:, : of["num_local_experts"]].astype(bool), weight


@pytest.mark.parametrize("offset", [0, 40, 2**31 - 1 - 384])
def test_ids_become_masks_and_weights(layer, offset):
    """A user would miss: an empty slot, or an id of another rank, that becomes a row; an expert twice counted once."""
    of, _ = layer
    local, top_k = of["num_local_experts"], of["top_k"]
    draw = np.random.default_rng(0)
    ids = offset + np.stack([draw.permutation(local)[:top_k] for _ in range(70)])
    ids[::3, 1], ids[1::3, 2], ids[2::3, 3] = -1, offset + local, offset - 1
    ids[::5, 4], ids[1::5, 5] = 2**31 - 1, -(2**31)
    ids[::4, -1] = ids[::4, 0]
    ids[7] = -1
    ids[8] = offset + local - 1
    ids = ids.astype(np.int64).clip(-(2**31), 2**31 - 1)
    weights = draw.random(ids.shape, dtype=np.float32)
    expert = ids - offset
    here = (expert >= 0) & (expert < local)
    weights[~here] = np.nan
    want = np.full((len(ids), local), np.nan, np.float32)
    for token, slot in zip(*here.nonzero(), strict=True):
        at = token, expert[token, slot]
        want[at] = weights[token, slot] + (0 if np.isnan(want[at]) else want[at])
    chosen, weight = ask(layer, ids, weights, offset)
    assert here.any() and np.array_equal(chosen, ~np.isnan(want))
    assert np.array_equal(weight, want, equal_nan=True)
