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
KEPT = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LANG")
TOOLKIT = Path("/usr/local/cuda")  # where it is in the evaluation's image
MINUTES = 15


def build(bundle: Path, definition: str, hardware: str) -> tuple[str | None, list[str], list[str]]:
    """(why it does not build, or None; what was done; what could not be checked here), each a line or lines.

    hardware: what CUDA sources are compiled for where there is no device and they leave it open, as sm_100.
    The bundle is copied, and HOME and every cache are in a folder that is removed afterwards, so that nothing built
    before helps. PYTHONPATH, the user's packages and the current folder are shut out by Python's -I.
    """
    with tempfile.TemporaryDirectory(prefix="submission-") as temporary:
        folder = Path(temporary)
        shutil.copytree(bundle, folder / "bundle")
        shutil.copy(paths.definition_file(definition), folder / "definition.json")
        (folder / "home").mkdir()
        (folder / "empty").mkdir()
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"HOME": str(folder / "home"), "FIB_CACHE_PATH": str(folder / "cache"), "TMPDIR": temporary}
        if TOOLKIT.is_dir():  # the compilers guess it from where nvcc is, and may be misled by a wrapper
            env.setdefault("CUDA_HOME", str(TOOLKIT))
        arguments = [folder / "bundle", folder / "definition.json", paths.ROOT, hardware]
        try:
            done = subprocess.run(
                [sys.executable, "-I", SCRIPT, *arguments],
                cwd=folder / "empty",
                env=env,
                capture_output=True,
                text=True,
                timeout=60 * MINUTES,
            )
        except subprocess.TimeoutExpired:
            return f"building from the bundle alone took more than {MINUTES} minutes", [], []
    *said, last = done.stdout.splitlines() or [""]
    try:
        report = json.loads(last)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"building from the bundle alone died with status {done.returncode}: {said}", [], []
    if report["error"]:
        return f"does not build from the bundle alone: {report['error'].replace(temporary, '...')}", [], []
    return None, [line for line in said if line.startswith(("packed", "built", "called", "CUDA"))], report["unchecked"]
