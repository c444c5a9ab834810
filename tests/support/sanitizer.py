"""compute-sanitizer on a script that runs a test build and says of each layer whether every stage
is right.
"""

import os
import re
import subprocess
import sys

import pytest
from hopper_stages import RIGHT
from moebench.core import paths

from solutions.common.host.build_library import find_toolkit

SUPPORT = paths.ROOT / "tests" / "support"
LIMIT_S = 300
TOOLS = {name: ("--tool", name) for name in ("memcheck", "synccheck", "initcheck", "racecheck")}
TOOLS["racecheck"] += ("--racecheck-report", "hazard")


def errors(options, script, library, layers):
    """How many errors the tool reports, and the end of what was said. layers: that must be right;
    None for any.
    """
    toolkit = find_toolkit()
    tool = toolkit and toolkit / "bin" / "compute-sanitizer"
    if tool is None or not tool.exists():
        pytest.skip("compute-sanitizer is not beside nvcc")
    searched = os.pathsep.join(map(str, (paths.ROOT, SUPPORT, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [tool, *options, sys.executable, script, library],
        env=os.environ | {"PYTHONPATH": searched},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = done.stdout + done.stderr
    assert layers is None or done.stdout.count(RIGHT) == layers, said[-6000:]
    summary = re.search(r"SUMMARY: .*?(\d+) errors", said)
    assert summary, said[-6000:]
    return int(summary.group(1)), said[-6000:]
