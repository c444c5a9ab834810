"""Command line arguments, and types of them, that several commands have."""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from moebench.core.errors import CannotRun, UserError


def count(least: int = 1) -> Callable[[str], int]:
    """A whole number, `least` or more; argparse reports anything else in one line."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number, {least} or more")
        return int(text)

    return parse


def fault_of(folder: Path) -> str | None:
    """Why no file can be written in a folder, which is made if it is missing; None where one can.
    Writes nothing.
    """
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        return error.strerror
    return None


def writable(path: Path) -> Path:
    """The path, if a file can be written there; devices and pipes are none. Raises UserError."""
    special = path.exists() and (not path.is_file() or Path("/dev") in path.parents)
    fault = "it is no file" if special else fault_of(path.parent)
    if path.is_file() and not os.access(path, os.W_OK):
        fault = "it is protected"
    if fault:
        raise UserError(f"got {str(path)!r}, want a file that can be written: {fault}")
    return path


def output_file(text: str) -> Path:
    """As `writable`, for argparse."""
    try:
        return writable(Path(text))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def output_folder(text: str) -> Path:
    """A folder, there or not, that files can be written in."""
    if fault := fault_of(Path(text)) if text else "it is empty":
        raise argparse.ArgumentTypeError(
            f"got {text!r}, want a folder that can be written in: {fault}"
        )
    return Path(text)


def check_cache() -> None:
    """Raise CannotRun where FlashInfer-Bench cannot write in its cache."""
    from flashinfer_bench.env import get_fib_cache_path

    if fault := fault_of(get_fib_cache_path()):
        wanted = "set FIB_CACHE_PATH to a folder that can be written in"
        raise CannotRun(
            f"FIB_CACHE_PATH: nothing can be written in {get_fib_cache_path()}: {fault}; {wanted}"
        )
