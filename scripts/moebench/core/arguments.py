"""Types of command line arguments that several commands have, and checks of files they name."""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from moebench.core.errors import CannotRun, UserError


def count(least: int = 1) -> Callable[[str], int]:
    """Return an argparse type: a whole number, `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"got {text!r}, want a whole number, {least} or more"
            )
        return int(text)

    return parse


def folder_fault(folder: Path) -> str | None:
    """Return why no file can be written in a folder, or None where one can.

    A folder that is not there yet would be made, so the nearest one above it counts. Nothing is
    left behind.
    """
    parents = [folder, *folder.absolute().parents]
    try:
        existing = next(path for path in parents if path.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        return error.strerror
    return None


def file_fault(path: Path) -> str | None:
    """Return why a file cannot be written, or None where it can. A device or pipe cannot."""
    if path.exists() and (not path.is_file() or Path("/dev") in path.parents):
        return "it is no file"
    if path.is_file() and not os.access(path, os.W_OK):
        return "it is protected"
    return folder_fault(path.parent)


def writable(path: Path) -> Path:
    """Return the path. Raises UserError unless it is of a file that can be written."""
    fault = file_fault(path)
    if fault:
        raise UserError(f"got {str(path)!r}, want a file that can be written: {fault}")
    return path


def output_file(text: str) -> Path:
    """Return the path of a file that can be written: an argparse type."""
    try:
        return writable(Path(text))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def output_folder(text: str) -> Path:
    """Return the path of a folder, there or not, that files can be written in: an argparse type."""
    fault = folder_fault(Path(text)) if text else "it is empty"
    if fault:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, want a folder that can be written in: {fault}"
        )
    return Path(text)


def check_cache() -> None:
    """Raise CannotRun where FlashInfer-Bench cannot write in its cache."""
    from flashinfer_bench.env import get_fib_cache_path

    cache = get_fib_cache_path()
    fault = folder_fault(cache)
    if fault:
        raise CannotRun(
            f"FIB_CACHE_PATH: nothing can be written in {cache}: {fault}; "
            "set FIB_CACHE_PATH to a folder that can be written in"
        )
