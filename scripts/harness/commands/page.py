"""Write docs/results.html, the results as a page to explore, from traces/."""

import argparse
import sys

from harness.core import paths
from harness.core.arguments import add_traces, output_file, writable
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.report import results_page
from harness.results import comparison, models
from harness.results.model_names import layers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_traces(parser)
    add = parser.add_argument
    add("--output", type=output_file, metavar="FILE", help="default, without --traces: docs/results.html")


def main(args: argparse.Namespace) -> int:
    if args.traces and not args.output:
        raise UserError("--output: want a file, as docs/results.html is of this repository's traces")
    output = writable(args.output or paths.RESULTS_PAGE)
    # the page in docs/ is of the FP8 layers; other operators have pages of their own
    found = comparison.build(args.traces or models.trace_files(layers()))
    write_atomically(output, results_page.page(found))
    for warning in found.warnings:
        print(warning, file=sys.stderr)
    print(f"wrote {output}")
    return 0
