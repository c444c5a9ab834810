"""Where vLLM's files are. vLLM itself, which wants dozens of packages, is never imported."""

import importlib.util
from pathlib import Path

from moebench.core.errors import CannotRun

NOT_INSTALLED = (
    "vLLM is not installed; --vllm takes the folder that its wheel was unpacked into"
)
NOT_IN_FOLDER = "--vllm: {folder} has no folder `vllm`"


def vllm_package(unpacked: Path | None) -> Path:
    """Return the folder of vLLM's package. Raises CannotRun where there is none.

    unpacked: the folder that a wheel was unpacked into; None for what is installed.
    """
    if unpacked:
        package = unpacked / "vllm"
        if not package.is_dir():
            raise CannotRun(NOT_IN_FOLDER.format(folder=unpacked))
        return package

    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise CannotRun(NOT_INSTALLED)
    return Path(spec.submodule_search_locations[0])


def existing(file: Path) -> Path:
    """Return the path of a file of vLLM's. Raises CannotRun where it is not there."""
    if not file.exists():
        raise CannotRun(f"this vLLM has no {file}; release 0.26 has")
    return file
