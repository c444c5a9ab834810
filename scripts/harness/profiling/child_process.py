"""Run the profiled calls in a process of their own, under a tool that has to start what it looks at."""

import os
import shutil
import subprocess
import sys

from harness.core import paths
from harness.profiling.profiled_calls import ProfileError

TIMEOUT_SECONDS = 900


def run_under(tool: list[str], calls: list[str]) -> None:
    """Run `tool... python -m harness.profiling.profiled_calls calls...`.

    Raises ProfileError, one line, when the tool is not installed, fails or takes longer than 15 minutes.
    """
    scripts = str(paths.ROOT / "scripts")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([scripts, os.environ.get("PYTHONPATH", "")])}
    finished(tool + [sys.executable, "-m", "harness.profiling.profiled_calls", *calls], environment)


def finished(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Standard output of a command that succeeded. Raises ProfileError as run_under does."""
    name = command[0]
    if shutil.which(name) is None:
        raise ProfileError(f"{name} is not installed: no such program on the PATH")
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ProfileError(f"{name}: no end after {TIMEOUT_SECONDS} s") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # The tools' own complaint says more than what comes after it.
        said = next((line for line in lines if "ERROR" in line or "Error:" in line), (lines or ["no output"])[-1])
        raise ProfileError(f"{name}: exit status {done.returncode}: {said}")
    return done.stdout
