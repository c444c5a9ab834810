"""Folders into which engines are installed once, and kept."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def cached(name):
    """Return the path of a kept folder, which may not be there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "moebench" / name


def pip_install(python, folder, *arguments):
    """Run an interpreter's pip; where it fails, remove the folder and skip the test."""
    command = [python, "-m", "pip", "install", "--no-compile", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        last_line = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"no environment for an engine on a CPU: {last_line}")
