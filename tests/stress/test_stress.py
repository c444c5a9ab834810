"""The solutions under load (stress.py), and that the delays of its test build are in it."""

import subprocess
import sys
from pathlib import Path

import delays
import pytest
from loaded import SOLUTIONS
from packed_sources import packed_texts

PROGRAM = Path(__file__).with_name("stress.py")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("solution", SOLUTIONS)
def test_every_call_under_load_is_as_alone(solution):
    command = [sys.executable, PROGRAM, "--solutions", solution]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    "solution", ["hopper_fused_invariant", "hopper_fused", "mma_fused"]
)
def test_a_delayed_build_waits_at_every_barrier(solution):
    texts = packed_texts(solution, "full")
    changed = delays.delayed(texts)

    different = {Path(path).name for path in texts if changed[path] != texts[path]}
    assert different == {"pdl.cuh", "barrier.cuh"}
