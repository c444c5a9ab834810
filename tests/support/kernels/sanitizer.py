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

SUPPORT = Path(__file__).parents[1]  # what a script imports lies there
LIMIT_S = 300
TOOLS = {name: ("--tool", name) for name in ("memcheck", "synccheck", "initcheck")}
TOOLS["racecheck"] = ("--tool", "racecheck", "--racecheck-report", "hazard")


def errors(options, script, library, layers):
    """Return how many errors the tool reports, and the end of what was printed.

    layers: how many must be right; None for any.
    """
    command = [compute_sanitizer(), *options, sys.executable, script, library]
    folders = [paths.ROOT, SUPPORT / "stages", SUPPORT / "solutions"]
    folders.append(os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    printed = done.stdout + done.stderr
    end = printed[-6000:]

    if layers is not None:
        assert done.stdout.count(RIGHT) == layers, end
    summary = re.search(r"SUMMARY: .*?(\d+) errors", printed)
    assert summary, end
    return int(summary[1]), end


def compute_sanitizer():
    """Return its path, beside nvcc; skip the test where there is none."""
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("there is no CUDA toolkit")
    tool = toolkit / "bin" / "compute-sanitizer"
    if not tool.exists():
        pytest.skip("compute-sanitizer is not beside nvcc")
    return tool
