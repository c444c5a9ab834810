"""Build a submission from its bundle alone: in an empty folder, a clean process and an empty cache."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core import paths

SCRIPT = Path(__file__).with_name("build_alone.py")
# No CPATH, NVCC_APPEND_FLAGS and the like: compilers find what the toolkit brings, and no more.
KEPT = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LANG")
TOOLKIT = Path("/usr/local/cuda")  # where it is in the evaluation's image
MINUTES = 15


class NotFit(Exception):
    """The bundle does not build alone; the message is one line."""


def build(bundle: Path, definition: str, hardware: str) -> list[str]:
    """Lines of what was done and what could not be checked here. Raises NotFit.

    hardware: what CUDA sources are compiled for where there is no device and they leave it open, as sm_100. HOME and
    every cache lie in a folder that is removed afterwards. Python's -I shuts out PYTHONPATH and the current folder.
    """
    with tempfile.TemporaryDirectory(prefix="submission-") as temporary:
        folder = Path(temporary)
        shutil.copytree(bundle, folder / "bundle")
        shutil.copy(paths.definition_file(definition), folder / "definition.json")
        for name in ("home", "empty"):
            (folder / name).mkdir()
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"HOME": str(folder / "home"), "FIB_CACHE_PATH": str(folder / "cache"), "TMPDIR": temporary}
        if TOOLKIT.is_dir():  # the compilers guess it from where nvcc is, and a wrapper may mislead them
            env.setdefault("CUDA_HOME", str(TOOLKIT))
        command = [sys.executable, "-I", SCRIPT, folder, paths.ROOT, hardware]
        limits = {"cwd": folder / "empty", "env": env, "timeout": 60 * MINUTES}
        try:
            done = subprocess.run(command, capture_output=True, text=True, **limits)
        except subprocess.TimeoutExpired as error:
            raise NotFit(f"building from the bundle alone took more than {MINUTES} minutes") from error
    try:
        report = json.loads((done.stdout.splitlines() or [""])[-1])
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise NotFit(f"building from the bundle alone died with status {done.returncode}: {last}") from error
    if isinstance(report, str):
        raise NotFit(f"does not build from the bundle alone: {report.replace(temporary, '...')}")
    return report
