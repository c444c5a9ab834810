"""Compare two trace sets, before and after a change, and print Markdown for a pull request.

A solution that is slower by more than 5% on any workload, or fails where it passed, is marked. Exit status: 0 nothing
is marked, 1 something is, 2 nothing could be compared or bad arguments.
"""

import argparse
import sys
from pathlib import Path

from harness.core.atomic_file import write_atomically
from harness.results import regression, trace_sets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "trace sets, folders of JSONL files or such files; several are merged"
    add("--before", type=Path, nargs="+", required=True, metavar="PATH", help=what)
    add("--after", type=Path, nargs="+", required=True, metavar="PATH", help="likewise")
    add("--output", type=Path, metavar="FILE", help="write the Markdown there too")


def main(args: argparse.Namespace) -> int:
    sides = []
    try:
        for given in (args.before, args.after):
            recorded, warnings = trace_sets.read(given)
            for warning in warnings:
                print(warning, file=sys.stderr)
            sides.append([found.trace for found in recorded])
        verdict = regression.compare(*sides)
        text = regression.markdown(verdict)
        print(text, end="")
        if args.output:
            write_atomically(args.output, text)
    except (trace_sets.TraceSetError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if not verdict.compared:
        print("nothing could be compared: no solution ran on both sides under the same conditions", file=sys.stderr)
        return 2
    return 1 if verdict.marked else 0
