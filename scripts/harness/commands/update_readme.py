"""Write the results in README.md anew from traces/."""

import argparse
import sys

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.report import results_block
from harness.results.trace_files import TraceSetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")


def main(args: argparse.Namespace) -> int:
    check = args.check
    old = paths.README.read_text()
    try:
        new = results_block.renewed(old)
    except (ValueError, TraceSetError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and new != old:
        print("README.md is out of date: run `make readme`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(paths.README, new)
    return 0
