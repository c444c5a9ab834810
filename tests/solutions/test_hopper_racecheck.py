"""compute-sanitizer's racecheck on hopper_fused's many-token kernels, and on builds that spare the tool."""

import os
import re
import subprocess
import sys

import hopper_racecheck as racecheck
import hopper_stages as stages
import pytest
from harness.core import paths

from solutions.kernels.build_library import find_toolkit

SUPPORT = paths.ROOT / "tests" / "support"
OPTIONS = ("--tool", "racecheck", "--racecheck-report", "all", "--kernel-name", "kernel_substring=many_gemm")
LIMIT_S = 900


@pytest.mark.parametrize("variant", racecheck.VARIANTS)
def test_variants_change_what_they_name(variant):
    """A user would miss: a check of kernels without multicast that still have it, as their source has changed."""
    before, after = racecheck.sources("as it is"), racecheck.sources(variant)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {path for path, _, _ in racecheck.VARIANTS[variant]}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("variant", racecheck.VARIANTS)
def test_racecheck_finds_no_hazard(variant):
    """A user would miss: shared memory that is read before it is written, or after; a wrong row now and then.

    The tool takes an mbarrier arrival for the arriving thread's alone, unless it sees the __syncwarp before it, and
    does not always follow bar.sync of a part of the CTA: look a hazard up in test_hopper_barriers.py's model first.
    """
    toolkit = find_toolkit()
    tool = toolkit and toolkit / "bin" / "compute-sanitizer"
    if tool is None or not tool.exists():
        pytest.skip("compute-sanitizer is not beside nvcc")
    library = stages.build(racecheck.sources(variant), ("-lineinfo",))
    searched = os.pathsep.join(map(str, (paths.ROOT, SUPPORT, os.environ.get("PYTHONPATH", ""))))
    how = {"env": os.environ | {"PYTHONPATH": searched}, "capture_output": True, "text": True}
    runner = [sys.executable, racecheck.__file__, library]
    alone = subprocess.run(runner, **how)
    right = len(racecheck.COUNTS)
    assert alone.stdout.count("every stage is right") == right, alone.stdout + alone.stderr
    try:
        done = subprocess.run([tool, *OPTIONS, *runner], timeout=LIMIT_S, **how)
    except subprocess.TimeoutExpired:
        pytest.skip(f"racecheck does not end within {LIMIT_S} s: {variant}")
    said = done.stdout + done.stderr
    summary = re.search(r"RACECHECK SUMMARY: (\d+) hazards?", said)
    assert summary is None or summary.group(1) == "0", said[-6000:]
    if summary is None or done.stdout.count("every stage is right") != right:  # without the tool it is
        pytest.skip(f"racecheck ends inside the tool: {variant}: {' | '.join(said.splitlines()[-6:])}")
