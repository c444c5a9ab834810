"""Build a submission from its bundle alone: in an empty folder, a clean process and an empty
cache.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from moebench.core import paths
from moebench.core.errors import CannotRun

SCRIPT = Path(__file__).with_name("build_alone.py")
# No CPATH, NVCC_APPEND_FLAGS and the like: compilers find what the toolkit brings, and no more.
KEPT = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LANG")
TOOLKIT = Path("/usr/local/cuda")  # where it is in the evaluation's image
MINUTES = 15
FAULTS = (
    "error:",
    "fatal ",
    "cannot find",
    "undefined reference",
)  # in the lines of a compiler that say what is wrong


def build(bundle: Path, definition: str, hardware: str) -> list[str]:
    """Lines of what was done and what could not be checked here. Raises CannotRun where it does not
    build alone.

    hardware: what CUDA sources are compiled for where there is no device and they leave it open, as
    sm_100. HOME and every cache lie in a folder that is removed afterwards. Python's -I shuts out
    PYTHONPATH and the current folder.
    """
    with tempfile.TemporaryDirectory(prefix="submission-") as temporary:
        folder, home = Path(temporary), Path(temporary, "home")
        home.mkdir()
        shutil.copy(bundle / "solution.json", folder)
        shutil.copy(paths.definition_file(definition), folder / "definition.json")
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"HOME": str(home), "FIB_CACHE_PATH": str(folder / "cache"), "TMPDIR": temporary}
        if (
            TOOLKIT.is_dir()
        ):  # the compilers guess it from where nvcc is, and a wrapper may mislead them
            env.setdefault("CUDA_HOME", str(TOOLKIT))
        command, limits = (
            [sys.executable, "-I", SCRIPT, folder, hardware],
            {"cwd": home, "timeout": 60 * MINUTES},
        )
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, errors="replace", **limits
            )
        except subprocess.TimeoutExpired as error:
            raise CannotRun(
                f"building from the bundle alone took more than {MINUTES} minutes"
            ) from error
        if done.returncode == 0 and (result := folder / "done.json").exists():
            return json.loads(result.read_bytes())
    lines = ["no output", *(done.stderr or done.stdout).splitlines()]
    said = [line.strip().replace(temporary, "...") for line in lines if line.strip()]
    if done.returncode == 0:
        raise CannotRun(f"building from the bundle alone ended without a result: {said[-1]}")
    fault = next((line for line in said if any(mark in line for mark in FAULTS)), said[-1])
    raise CannotRun(f"does not build from the bundle alone, status {done.returncode}: {fault}")
