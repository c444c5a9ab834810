"""Compare two trace sets, before and after a change, and print Markdown for a pull request.

A solution that is slower by more than 5% on any workload, or fails where it passed, is marked. Exit status: 0 nothing
is marked, 1 something is or nothing could be compared, 2 bad arguments.
"""

import argparse
import sys
from pathlib import Path

from harness.core.arguments import output_file
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun
from harness.report import regression as report
from harness.results import regression, trace_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "trace sets, folders of JSONL files or such files; several are merged"
    add("--before", type=Path, nargs="+", required=True, metavar="PATH", help=what)
    add("--after", type=Path, nargs="+", required=True, metavar="PATH", help="likewise")
    add("--output", type=output_file, metavar="FILE", help="write the Markdown there too")


def main(args: argparse.Namespace) -> int:
    (before, lines), (after, more) = trace_files.read(args.before), trace_files.read(args.after)
    for warning in (*lines, *more):
        print(warning, file=sys.stderr)
    found = regression.compare(before, after)
    text = report.markdown(found)
    print(text, end="")
    if args.output:
        write_atomically(args.output, text)
    if not (found.side == "both").any():
        raise CannotRun("nothing could be compared: no solution ran on both sides under the same conditions")
    return 1 if (found.mark != "").any() else 0
