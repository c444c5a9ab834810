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
# No CPATH, CPLUS_INCLUDE_PATH, C_INCLUDE_PATH, NVCC_APPEND_FLAGS: compilers find what the toolkit brings, and no more.
KEPT = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LANG")
TOOLKIT = Path("/usr/local/cuda")  # where it is in the evaluation's image
MINUTES = 15


def build(bundle: Path, definition: str, hardware: str) -> tuple[str | None, list[str], list[str]]:
    """(why it does not build, or None; what was done; what could not be checked here), each a line or lines.

    hardware: what CUDA sources are compiled for where there is no device and they leave it open, as sm_100.
    The bundle is copied, and HOME and every cache lie in a folder that is removed afterwards, so that nothing built
    before helps. PYTHONPATH, the user's packages and the current folder are shut out by Python's -I, compilers' search
    paths by not passing the environment on.
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
        try:
            done = subprocess.run(
                command, cwd=folder / "empty", env=env, capture_output=True, text=True, timeout=60 * MINUTES
            )
        except subprocess.TimeoutExpired:
            return f"building from the bundle alone took more than {MINUTES} minutes", [], []
    try:
        report = json.loads((done.stdout.splitlines() or [""])[-1])
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"building from the bundle alone died with status {done.returncode}: {last}", [], []
    if report["error"]:
        return f"does not build from the bundle alone: {report['error'].replace(temporary, '...')}", [], []
    return None, report["done"], report["unchecked"]
