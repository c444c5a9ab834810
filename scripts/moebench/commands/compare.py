"""Recorded results side by side: one row a solution, and the other definitions by name.

--workloads shows every workload, --against what a change made slower or wrong. A row is one
solution on one workload, GPU, tolerance and clock; where several traces are of it, the newest of
the current source counts.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from moebench.core import paths
from moebench.core.arguments import output_file
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.core.names import unknown
from moebench.core.provenance import CLOCKS
from moebench.judging.tolerances import TOLERANCES
from moebench.operators.catalogue import KEYS, definition_name
from moebench.reports import comparison as report
from moebench.reports import html
from moebench.reports.table import Table, console
from moebench.results import against, measurements
from moebench.results.summary import shown_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    traces = (
        "data sets in any layout, folders of JSONL files or such files; default: this repository's"
    )
    add("--traces", "--dataset", nargs="+", type=Path, metavar="PATH", help=traces)
    add(
        "--definition",
        metavar="KEY",
        help="of `moebench data`, or a name; default: the first one that was recorded",
    )
    add(
        "--solutions", nargs="+", default=[], metavar="NAME", help="default: all that were recorded"
    )
    add(
        "--tolerance",
        choices=list(TOLERANCES),
        help="workload by workload at it; default: relaxed, if it is there",
    )
    add("--clock", choices=CLOCKS, default="events", help="default: events")
    add("--workloads", action="store_true", help="every workload, not three of them")
    what = "the traces before a change, as --traces; exit 1 where something is more than 5%% slower, or wrong now"
    add("--against", nargs="+", type=Path, metavar="PATH", help=what)
    add(
        "--html", type=output_file, metavar="FILE", help="a page to explore, which needs no network"
    )
    add(
        "--csv",
        type=output_file,
        metavar="FILE",
        help="every row, of all definitions unless one is named",
    )
    add("--json", type=output_file, metavar="FILE", help="likewise")


def main(args: argparse.Namespace) -> int:
    given = args.traces or [paths.ROOT if args.clock == "events" else paths.GPU_CLOCK]
    if args.against:
        if unused := [name for name in ("workloads", "html", "csv", "json") if getattr(args, name)]:
            raise UserError(f"--{unused[0]}: not with --against")
        found, warnings = against.compare(args.against, given)
        found = chosen(found, args)
        show([report.changes(found)], warnings, markdown=not sys.stdout.isatty())
        if not (found.side == "both").any():
            raise CannotRun("--against: nothing was run on both sides under the same conditions")
        return 1 if (found.mark != "").any() else 0
    every, warnings = measurements.load(given)
    rows = chosen(every, args)
    files = {
        args.html: html.page,
        args.csv: lambda rows: rows.drop(columns="log").to_csv(index=False),
    }
    files[args.json] = lambda rows: rows.to_json(orient="records", indent=1)
    for path, text in files.items():
        if path:
            write_atomically(path, text(rows))
            print(f"wrote {path}")
    first = rows.definition.iloc[0]
    show([] if any(files) else tables(rows[rows.definition == first], args), warnings)
    if not any(files) and (
        others := sorted(set(every.geometry.fillna(every.definition)[every.definition != first]))
    ):
        console().print(f"Others, by --definition: {', '.join(others)}", soft_wrap=True)
    return 0


def chosen(rows: pd.DataFrame, args: argparse.Namespace) -> pd.DataFrame:
    """The rows that the arguments ask for, the main definition's first. Raises UserError where
    there are none.
    """
    rows = rows[rows.clock == args.clock]
    if not len(rows):
        raise UserError(f"--clock: got {args.clock}, but none of these traces was timed by it")
    if args.definition:
        name = (
            definition_name(KEYS[args.definition]) if args.definition in KEYS else args.definition
        )
        if name not in set(rows.definition):
            if args.definition not in KEYS:
                raise UserError(unknown("definition", name, sorted(set(rows.definition))))
            raise UserError(
                f"--definition: got {args.definition}: nothing is recorded; moebench run --save records it"
            )
        rows = rows[rows.definition == name]
    for name in args.solutions:
        if name not in set(rows.solution):
            raise UserError(f"--solutions: {unknown('solution', name, sorted(set(rows.solution)))}")
    rows = rows[rows.solution.isin(args.solutions)] if args.solutions else rows
    if args.tolerance and not len(rows := rows[rows.tolerance == args.tolerance]):
        raise UserError(f"--tolerance: nothing is recorded at {args.tolerance}")
    known = [
        name for name in dict.fromkeys([*KEYS, *rows.definition]) if name in set(rows.definition)
    ]
    return rows.sort_values("definition", key=lambda names: names.map(known.index), kind="stable")


def tables(rows: pd.DataFrame, args: argparse.Namespace) -> list[Table]:
    """Of one definition, a table for each GPU."""
    if one := args.workloads or args.tolerance:
        rows = rows[rows.tolerance == (args.tolerance or shown_of(rows))]
    make = report.workloads if one else report.solutions
    made = [make(rows[rows.hardware == gpu]) for gpu in report.gpus(rows)]
    return [
        *(replace(each, caption="") for each in made[:-1]),
        made[-1],
    ]  # one caption explains them all


def show(made: list[Table], warnings: list[str], markdown: bool = False) -> None:
    for each in made:
        console().print(
            each.markdown(titled=True) if markdown else each.terminal(), soft_wrap=markdown
        )
    for warning in warnings:
        print(warning, file=sys.stderr)
