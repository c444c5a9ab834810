"""examples/expert_parallel over gloo: the values of both ways, a solution in it, and a rank that is killed."""

import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from harness.core import paths

EXAMPLE = paths.ROOT / "examples" / "expert_parallel"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="over gloo, for machines without a GPU")

# Saves, of each rank: for each number of tokens, what each way gives and what one rank with all experts gives.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
import main
from definitions import moe_fp8_block_scale
from layer import Layer, tokens_of, weights_of
from local_experts import local_experts

dist.init_process_group("gloo")
rank, layer, found = dist.get_rank(), Layer("small", 2), {}
weights = weights_of(layer, range(256), "cpu", gate_first=False)
for counts in ([2, 2], [1, 3], [0, 2], [0, 0]):
    own = tokens_of(layer, counts[rank], rank, "cpu")
    want = moe_fp8_block_scale.run(own.logits, own.bias, own.x, own.scale.t(), *weights, 0, 2.5)
    ways = {}
    for name, way in main.WAYS.items():
        experts = local_experts("reference", layer, rank, "cpu", way.ROUTED)
        ways[name] = way.forward(layer, experts, own, counts)
    found[tuple(counts)] = want, ways
torch.save(found, f"{sys.argv[2]}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_both_ways_give_the_layer_of_one_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    subprocess.run([*TORCHRUN, program, EXAMPLE, tmp_path], check=True, timeout=300)
    for rank in range(2):
        for counts, (want, ways) in torch.load(tmp_path / f"{rank}.pt").items():
            for way, got in ways.items():
                assert got.shape == want.shape == (counts[rank], 512) and got.dtype == torch.bfloat16
                error = (got.float() - want.float()).norm() / want.float().norm().clamp(min=1e-6)
                assert error < 0.01, (rank, counts, way)


def test_a_solution_passes_every_check():
    command = [*TORCHRUN, EXAMPLE / "main.py", "--definition", "small", "--solution", "triton_fused_v2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 6


@pytest.mark.slow
def test_a_layer_that_needs_gpus_is_refused():
    done = subprocess.run([*TORCHRUN, EXAMPLE / "main.py", "--definition", "full"], capture_output=True, timeout=300)
    assert done.returncode == 1 and not done.stdout


def test_a_killed_rank_ends_the_others():
    with subprocess.Popen([*TORCHRUN, EXAMPLE / "main.py"], stdout=subprocess.DEVNULL) as launcher:
        watched = psutil.Process(launcher.pid)
        while len(ranks := watched.children()) < 2:
            assert launcher.poll() is None
            time.sleep(0.05)
        ranks[1].send_signal(signal.SIGKILL)
        assert launcher.wait(timeout=60) == 1
        assert not any(rank.is_running() for rank in ranks)
