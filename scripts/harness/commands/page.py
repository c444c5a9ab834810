"""Write docs/results.html, the results as a page to explore, from traces/."""

import argparse
import sys
from pathlib import Path

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.report import results_page
from harness.results import comparison
from harness.results.trace_sets import TraceSetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--traces",
        nargs="+",
        type=Path,
        default=[paths.ROOT],
        metavar="PATH",
        help="trace sets, folders of JSONL files, or such files, taken together; default: this repository",
    )
    add("--output", type=Path, metavar="FILE", default=paths.RESULTS_PAGE, help="default: docs/results.html")


def main(args: argparse.Namespace) -> int:
    # the page in docs/ is of the FP8 layer; other operators have pages of their own
    definition = "full" if args.traces == [paths.ROOT] else None
    try:
        found = comparison.build(args.traces, definition)
        write_atomically(args.output, results_page.page(found))
    except (TraceSetError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for warning in found.warnings:
        print(warning, file=sys.stderr)
    print(f"wrote {args.output}")
    return 0
