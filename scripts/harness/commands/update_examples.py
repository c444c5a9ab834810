"""Run the commands that docs/compare.md shows and write what they print into it."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.report import doc_examples

PAGE = paths.DOCS / "compare.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")


def main(args: argparse.Namespace) -> int:
    check = args.check
    old = PAGE.read_text()
    try:
        new = doc_examples.renewed(old)
    except ValueError as error:
        print(f"{PAGE.name}: {error}", file=sys.stderr)
        return 1
    if check and new != old:
        print(f"{PAGE.name} is out of date: run `make examples`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(PAGE, new)
    return 0
