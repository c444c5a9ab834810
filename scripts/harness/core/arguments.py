"""Command line arguments, and types of them, that several commands have."""

import argparse
from collections.abc import Callable
from pathlib import Path


def add_traces(parser: argparse.ArgumentParser) -> None:
    """--traces: paths, or None for this repository."""
    listed = "trace sets, folders of JSONL files, or such files, taken together; default: this repository"
    parser.add_argument("--traces", nargs="+", type=Path, metavar="PATH", help=listed)


def count(least: int = 1) -> Callable[[str], int]:
    """A whole number, `least` or more; argparse reports anything else in one line."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number, {least} or more")
        return int(text)

    return parse
