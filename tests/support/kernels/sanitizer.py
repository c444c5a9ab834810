"""compute-sanitizer on a script that runs a test build and says of each layer whether every stage
is right.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from moebench.core import paths
from stage_build import RIGHT

from solutions.common.host.build_library import find_toolkit

HERE = Path(__file__).parent
LIMIT_S = 300
TOOLS = {name: ("--tool", name) for name in ("memcheck", "synccheck", "initcheck")}
TOOLS["racecheck"] = ("--tool", "racecheck", "--racecheck-report", "hazard")


def errors(options, script, library, layers):
    """Return how many errors the tool reports, and the end of what was printed.

    layers: how many must be right; None for any.
    """
    command = [compute_sanitizer(), *options, sys.executable, script, library]
    folders = (paths.ROOT, HERE, HERE.with_name("solutions"), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    end = (done.stdout + done.stderr)[-6000:]

    if layers is not None:
        assert done.stdout.count(RIGHT) == layers, end
    summary = re.search(r"SUMMARY: .*?(\d+) errors", done.stdout + done.stderr)
    assert summary, end
    return int(summary.group(1)), end


def compute_sanitizer():
    """Return its path, beside nvcc; skip the test where there is none."""
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("there is no CUDA toolkit")
    tool = toolkit / "bin" / "compute-sanitizer"
    if not tool.exists():
        pytest.skip("compute-sanitizer is not beside nvcc")
    return tool
