"""Compare solutions side by side, from recorded traces: which is fastest where, and how exact each is.

Everything that is averaged comes from one machine, one set of versions, one tolerance and one protocol. Where several
traces are of one cell, those of the current source come first, and the newest of them counts.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.operators.catalogue import GEOMETRIES
from harness.report import comparison as report
from harness.results import comparison, comparison_data

FORMATS = ("terminal", "markdown", "csv", "json")


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
    add("--definition", metavar=f"{'|'.join(GEOMETRIES)}|NAME", help="default: all that were recorded")
    add("--tolerance", metavar="NAME", help="default: all that were recorded")
    add("--solutions", nargs="+", default=[], metavar="NAME", help="default: all that were recorded")
    add("--ratio", nargs=2, metavar=("A", "B"), help="only this: how many times as fast A is as B")
    add("--format", choices=FORMATS, default="terminal", help="default: terminal")
    add("--output", type=Path, metavar="FILE", help="write there, not to the terminal")


def main(args: argparse.Namespace) -> int:
    found = comparison.build(args.traces, args.definition, args.tolerance, args.solutions)
    pair = tuple(args.ratio) if args.ratio else None
    if pair:
        found = comparison.with_ratio(found, *pair)
    for warning in found.warnings:
        print(warning, file=sys.stderr)
    if args.format == "terminal" and not args.output and sys.stdout.isatty():
        report.show(found, Console(), pair)
        return 0
    forms = {
        "terminal": lambda: report.plain_text(found, pair),
        "markdown": lambda: report.markdown(found, pair),
        "csv": lambda: comparison_data.ratios_csv(found) if pair else comparison_data.cells_csv(found),
        "json": lambda: comparison_data.as_json(found),
    }
    text = forms[args.format]()
    if args.output:
        write_atomically(args.output, text)
    else:
        sys.stdout.write(text)
    return 0
