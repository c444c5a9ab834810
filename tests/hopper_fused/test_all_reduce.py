"""The sum over ranks in hopper_fused's launch, on the GPUs of one host."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from moebench.packing.python_package import pack_packages

RANK = Path(__file__).with_name("all_reduce_rank.py")
# 16 CTAs share a column tile; none does, and ranks have rows of all sizes.
LAYER_KEYS = ["small", "full"]
NONE = {"calls": 0, "replays": 0}
NONE_WRONG = {"direct": NONE, "two_hops": NONE}


@pytest.fixture(scope="module", params=LAYER_KEYS)
def package(request, tmp_path_factory):
    """Folder and dotted name of the packed solution."""
    folder = tmp_path_factory.mktemp("packages") / "moe"
    (path,) = pack_packages(["hopper_fused"], folder, [request.param])
    return folder.parent, f"moe.{path.name}"


def run_ranks(ranks, package, mode, *options):
    """Return what the first of so many ranks printed; skip where there are too few GPUs."""
    gpus = torch.cuda.device_count()
    if gpus < ranks and "--share-gpus" not in options:
        pytest.skip(f"needs {ranks} GPUs of one host; torch sees {gpus}")

    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(ranks)]
    command = [*launcher, RANK, *map(str, package), mode, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_are_those_of_the_outputs_added_in_order_of_rank(ranks, package):
    """In calls, and in graphs that are replayed in turn with late ranks; sums travel directly, and
    in two hops.
    """
    assert run_ranks(ranks, package, "sums") == NONE_WRONG


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_missing_rank_is_named(ranks, package):
    """Four epochs are over when the last rank stays away."""
    result = run_ranks(ranks, package, "missing")
    assert result == {"missing": ranks - 1, "epoch": 5}


# Eight, the most that there may be, on however few GPUs: eight shares of 32 experts are all 256.


@pytest.mark.gpu
def test_bits_of_eight_ranks_that_share_gpus(package):
    assert run_ranks(8, package, "sums", "--share-gpus") == NONE_WRONG


@pytest.mark.gpu
def test_a_missing_rank_of_eight_that_share_gpus_is_named(package):
    result = run_ranks(8, package, "missing", "--share-gpus")
    assert result == {"missing": 7, "epoch": 5}
