"""examples/multi_gpu over gloo: shares that make up the layer, every way with a solution, a rank
that is killed; and on GPUs.
"""

import importlib
import signal
import subprocess
import sys
import time
from argparse import Namespace

import psutil
import pytest
import torch
from every_solution import relative_error
from moebench.core import paths
from moebench.core.errors import CannotRun, UserError
from moebench.operators.fp8.routed import router_inside

EXAMPLE = paths.ROOT / "examples" / "multi_gpu"
GLOO = pytest.mark.skipif(
    torch.cuda.is_available(), reason="over gloo, for machines without a GPU"
)
RANKS = 3  # whose shares make up their experts and their width
CHECKS = 7  # of all_reduce.py for each way, with two numbers of tokens


@pytest.fixture
def example(monkeypatch):
    """Return a function that imports a module of the example."""
    monkeypatch.syspath_prepend(EXAMPLE)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (EXAMPLE / f"{name}.py").exists():
            del sys.modules[name]


def command_of(script, *arguments, ranks=2):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks), EXAMPLE / script, *arguments]


def passed_checks(*arguments, ranks=2):
    """Run a program of the example on these ranks; return how many checks have passed."""
    command = command_of(*arguments, ranks=ranks)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("PASSED")


@pytest.mark.parametrize(
    ("split", "name"),
    # with a bias for the router, and without
    [("width_share", "small-one-group"), ("expert_share", "small-renorm")],
)
def test_shares_make_up_the_layer(example, split, name):
    layer = example("layer")
    local_layer = example("local_layer")
    tokens = layer.tokens_of(name, [3], 0, "cpu")
    share_of = getattr(layer, split)

    def output(rank, ranks):
        share = share_of(name, rank, ranks)
        weights = layer.weights_of(share, "cpu")
        reference = local_layer.local_layer(local_layer.REFERENCE, share, weights)
        return reference(*tokens.inputs_of(share)).float()

    whole = output(0, 1)
    parts = [output(rank, RANKS) for rank in range(RANKS)]

    assert relative_error(sum(parts), whole) < 0.01  # bf16
    assert all(part.norm() > 0.1 * whole.norm() for part in parts)


def test_a_layer_with_shared_experts_is_refused(example):
    """For either program, though it has two definitions as well."""
    layer = example("layer")
    ranks = example("ranks")
    assert "small-shared" in router_inside().values()
    for layers in (layer.WITHOUT_SHARED_EXPERTS, layer.WITH_BIAS):
        ranks.check_layer("small", layers, 2)
        with pytest.raises(UserError, match="got small-shared,"):
            ranks.check_layer("small-shared", layers, 2)


@GLOO
@pytest.mark.slow
def test_a_solution_passes_every_check_with_tokens_of_each_rank():
    arguments = ("--definition", "small", "--solution", "triton_fused_v2")
    assert passed_checks("dispatch.py", *arguments) == 6


@GLOO
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split"), [("small", "width"), ("small-renorm", "experts")]
)
def test_a_solution_passes_every_check_of_a_sum(name, split):
    arguments = (
        "--definition",
        name,
        "--solution",
        "triton_fused_v2",
        "--split",
        split,
    )
    assert passed_checks("all_reduce.py", *arguments, "--tokens", "1", "5") == CHECKS


@pytest.mark.parametrize("shares", [4, 1])  # of 64 columns; fewer than ranks
def test_a_layer_that_does_not_split_is_refused(example, monkeypatch, shares):
    all_reduce = example("all_reduce")
    monkeypatch.setattr(all_reduce.dist, "get_world_size", lambda: 2)
    arguments = Namespace(
        definition="small",
        split="width",
        shares=shares,
        solution=all_reduce.REFERENCE,
        share_gpus=False,
    )
    with pytest.raises(UserError, match=f"got {shares}"):
        all_reduce.check_arguments(arguments)


def test_ranks_that_share_gpus_are_not_recorded(example):
    all_reduce = example("all_reduce")
    arguments = Namespace(share_gpus=True, record="times.jsonl")
    with pytest.raises(UserError, match="not timed"):
        all_reduce.check_arguments(arguments)


def test_more_ranks_than_gpus_are_refused_unless_they_may_share(example):
    ranks = example("ranks")
    ranks.check_ranks(4, 4, "full", share_gpus=False)
    ranks.check_ranks(8, 4, "full", share_gpus=True)
    with pytest.raises(CannotRun, match="got 8 for 4 GPUs.*--share-gpus"):
        ranks.check_ranks(8, 4, "full", share_gpus=False)
    with pytest.raises(CannotRun, match="got full, and no GPU"):
        ranks.check_ranks(8, 0, "full", share_gpus=True)


@pytest.mark.parametrize(
    ("gpus", "numbers"),
    [(1, [0] * 8), (3, [0, 0, 0, 1, 1, 1, 2, 2]), (4, [0, 0, 1, 1, 2, 2, 3, 3])],
)
def test_ranks_share_gpus_evenly(example, gpus, numbers):
    gpu_number = example("ranks").gpu_number
    assert [gpu_number(rank, 8, gpus) for rank in range(8)] == numbers


@GLOO
def test_a_layer_that_needs_gpus_is_refused(example, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(CannotRun, match="got full, and no GPU"):
        example("ranks").join("full", ["full"])


@pytest.mark.slow
@GLOO
def test_a_killed_rank_ends_the_others():
    command = command_of("dispatch.py")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        ranks = []
        while len(ranks) < 2:
            assert process.poll() is None
            time.sleep(0.05)
            ranks = watched.children()
        ranks[1].send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == 1
        assert not any(rank.is_running() for rank in ranks)


@pytest.mark.gpu
@pytest.mark.parametrize("split", ["width", "experts"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_way_sums_right_on_gpus(ranks, split):
    """DeepSeek-V3's layer in eight shares, of which the ranks have the first."""
    gpus = torch.cuda.device_count()
    if gpus < ranks:
        pytest.skip(f"needs {ranks} GPUs of one host; torch sees {gpus}")

    arguments = ("--definition", "deepseek-v3-ep1", "--split", split, "--shares", "8")
    arguments += ("--solution", "hopper_fused", "--tokens", "1", "40", "--rounds", "0")
    assert passed_checks("all_reduce.py", *arguments, ranks=ranks) == 4 * CHECKS


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("script", "arguments", "checks"),
    [
        (
            "all_reduce.py",
            ("--definition", "deepseek-v3-ep1", "--tokens", "1", "40"),
            4 * CHECKS,
        ),
        ("dispatch.py", ("--definition", "small"), 6),
    ],
)
def test_eight_ranks_that_share_gpus_pass_every_check(script, arguments, checks):
    """DeepSeek-V3's layer with its width in eight, and a small one with its experts in eight."""
    options = ("--share-gpus", "--solution", "hopper_fused")
    assert passed_checks(script, *arguments, *options, ranks=8) == checks
