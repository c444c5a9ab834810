"""Build a submission from its bundle alone: in an empty folder, a clean process and an empty cache.

contest.py calls `build` before it accepts a solution. The bundle is a folder with solution.json.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from moebench.core import paths
from moebench.core.errors import CannotRun, telling_line

SCRIPT = Path(__file__).with_name("build_alone.py")

# Variables that the process inherits. CPATH, NVCC_APPEND_FLAGS and the like are not among them, so
# that compilers find nothing but what the toolkit brings.
KEPT_VARIABLES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LANG",
)
TOOLKIT = Path("/usr/local/cuda")  # where it is in the evaluation's image
MINUTES = 15
# Texts in the lines of a compiler's output that say what is wrong
FAULTS = ("error:", "fatal ", "cannot find", "undefined reference")


def build(bundle: Path, definition: str, hardware: str) -> list[str]:
    """Return lines that say what was done and what could not be checked on this machine.

    hardware: of the evaluation, "sm_100"; without a device, CUDA sources that name no hardware are
    compiled for it. HOME and every cache lie in a folder that is removed afterwards. Raises
    CannotRun where the bundle does not build alone.
    """
    with tempfile.TemporaryDirectory(prefix="submission-") as temporary:
        folder = Path(temporary)
        home = folder / "home"
        home.mkdir()
        shutil.copy(bundle / "solution.json", folder)
        shutil.copy(paths.definition_file(definition), folder / "definition.json")

        done = run_alone(folder, home, hardware)
        result = folder / "done.json"
        if done.returncode == 0 and result.exists():
            return json.loads(result.read_bytes())
        raise CannotRun(fault(done, temporary))


def run_alone(folder: Path, home: Path, hardware: str) -> subprocess.CompletedProcess:
    """Run build_alone.py on a folder, with -I, which shuts out PYTHONPATH and the working folder.

    Raises CannotRun when it takes too long.
    """
    command = [sys.executable, "-I", SCRIPT, folder, hardware]
    try:
        return subprocess.run(
            command,
            cwd=home,
            env=clean_environment(folder, home),
            timeout=60 * MINUTES,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRun(
            f"building from the bundle alone took more than {MINUTES} minutes"
        ) from error


def clean_environment(folder: Path, home: Path) -> dict[str, str]:
    """Return the variables of a process whose caches all lie in a folder."""
    env = {}
    for name in KEPT_VARIABLES:
        if name in os.environ:
            env[name] = os.environ[name]
    env["HOME"] = str(home)
    env["FIB_CACHE_PATH"] = str(folder / "cache")
    env["TMPDIR"] = str(folder)
    if TOOLKIT.is_dir():
        # compilers guess it from where nvcc is, and a wrapper may mislead them
        env.setdefault("CUDA_HOME", str(TOOLKIT))
    return env


def fault(done: subprocess.CompletedProcess, temporary: str) -> str:
    """Return why a build gave no result: the compiler's error, or the last line of the output."""
    output = (done.stderr or done.stdout).replace(temporary, "...")
    if done.returncode == 0:
        line = telling_line(output)
        return f"building from the bundle alone ended without a result: {line}"
    cause = telling_line(output, FAULTS)
    return f"does not build from the bundle alone, status {done.returncode}: {cause}"
