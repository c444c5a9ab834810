"""compute-sanitizer's tools on a small layer through hopper_fused's many-token kernels."""

import os
import re
import subprocess
import sys

import hopper_small_layer as small_layer
import hopper_stages as stages
import pytest
from harness.core import paths

from solutions.kernels.build_library import find_toolkit

SUPPORT = paths.ROOT / "tests" / "support"
RACECHECK = ("--tool", "racecheck", "--racecheck-report", "hazard", "--kernel-name", "kernel_substring=many_gemm")
LIMIT_S = 300


def errors(variant, options):
    """How many errors the tool reports while the layer runs; each of its stages must be right all the same."""
    toolkit = find_toolkit()
    tool = toolkit and toolkit / "bin" / "compute-sanitizer"
    if tool is None or not tool.exists():
        pytest.skip("compute-sanitizer is not beside nvcc")
    library = stages.build(small_layer.sources(variant), ("-lineinfo",))
    searched = os.pathsep.join(map(str, (paths.ROOT, SUPPORT, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [tool, *options, sys.executable, small_layer.__file__, library],
        env=os.environ | {"PYTHONPATH": searched},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = done.stdout + done.stderr
    assert done.stdout.count("every stage is right") == len(small_layer.COUNTS), said[-6000:]
    summary = re.search(r"SUMMARY: .*?(\d+) errors", said)
    assert summary, said[-6000:]
    return int(summary.group(1)), said[-6000:]


@pytest.mark.parametrize("variant", small_layer.VARIANTS)
def test_variants_change_what_they_name(variant):
    """A user would miss: a check of kernels without the change that the tool needs, as their source has changed."""
    before, after = small_layer.sources("one lane releases"), small_layer.sources(variant)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {path for path, _, _ in small_layer.VARIANTS[variant]}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "initcheck"])
def test_clean(tool):
    """A user would miss: bytes outside a tensor, a barrier used against its rules, scratch that is read unwritten."""
    found, said = errors("one lane releases", ("--tool", tool))
    assert found == 0, said


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("variant", "clean"), [("every lane releases", True), ("one lane releases", False)])
def test_racecheck(variant, clean):
    """A user would miss: shared memory that is read before it is written, or after; a wrong row now and then.

    With one lane's release the tool reports reads that are ordered, which shows that it sees unordered ones.
    """
    found, said = errors(variant, RACECHECK)
    assert (found == 0) == clean, said
