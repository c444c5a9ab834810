"""Command line arguments, and types of them, that several commands have."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.core.names import unknown


def add_traces(parser: argparse.ArgumentParser) -> None:
    """--traces: paths, or None for this repository."""
    listed = "trace sets, folders of JSONL files, or such files, taken together; default: this repository"
    parser.add_argument("--traces", nargs="+", type=Path, metavar="PATH", help=listed)


class Names(argparse.Action):
    """A list of names, separated by spaces or commas, each one of `choices` if there are any; nargs is "+" or "*"."""

    def __init__(self, *args, choices: Iterable[str] | None = None, **kwargs):
        super().__init__(*args, **({"metavar": "|".join(choices)} if choices else {}), **kwargs)
        self.known = choices

    def __call__(self, parser, namespace, values, option_string=None):
        names = [name for text in values for name in text.split(",") if name]
        for name in names:
            if self.known is not None and name not in self.known:
                raise argparse.ArgumentError(self, unknown("value", name, self.known))
        setattr(namespace, self.dest, names)


def count(least: int = 1) -> Callable[[str], int]:
    """A whole number, `least` or more; argparse reports anything else in one line."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number, {least} or more")
        return int(text)

    return parse
