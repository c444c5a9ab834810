"""Compare solutions side by side, from recorded traces: which is fastest where, and how exact each is.

Everything that is averaged comes from one machine, one set of versions, one tolerance and one protocol. Where several
traces are of one cell, those of the current source come first, and the newest of them counts.
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.operators.catalogue import GEOMETRIES
from harness.report import comparison_markdown, comparison_terminal
from harness.results import comparison, comparison_data
from harness.results.trace_sets import TraceSetError

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


def text_of(found: comparison.Comparison, form: str, pair: tuple[str, str] | None) -> str:
    if form == "terminal":
        return comparison_terminal.plain_text(found, pair)
    if form == "markdown":
        return comparison_markdown.markdown(found, pair)
    if form == "json":
        return comparison_data.as_json(found)
    return comparison_data.ratios_csv(found) if pair else comparison_data.cells_csv(found)


def main(args: argparse.Namespace) -> int:
    pair = tuple(args.ratio) if args.ratio else None
    try:
        found = comparison.build(args.traces, args.definition, args.tolerance, args.solutions)
        if pair:
            found = comparison.with_ratio(found, *pair)
        for warning in found.warnings:
            print(warning, file=sys.stderr)
        if args.output:
            write_atomically(args.output, text_of(found, args.format, pair))
        elif args.format == "terminal" and sys.stdout.isatty():
            comparison_terminal.show(found, Console(), pair)
        else:
            sys.stdout.write(text_of(found, args.format, pair))
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (TraceSetError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
