"""examples/expert_parallel over gloo: both ways with a solution, against one rank, and a rank that
is killed.
"""

import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from moebench.core import paths

EXAMPLE = paths.ROOT / "examples" / "expert_parallel"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="over gloo, for machines without a GPU"
)


@pytest.mark.slow
def test_a_solution_passes_every_check():
    command = [
        *TORCHRUN,
        EXAMPLE / "main.py",
        "--definition",
        "small",
        "--solution",
        "triton_fused_v2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 6


@pytest.mark.slow
def test_a_layer_that_needs_gpus_is_refused():
    done = subprocess.run(
        [*TORCHRUN, EXAMPLE / "main.py", "--definition", "full"], capture_output=True, timeout=300
    )
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
