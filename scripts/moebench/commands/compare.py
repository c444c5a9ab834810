"""Recorded results side by side: one row a solution, and the other definitions by name.

--workloads shows every workload, --against what a change made slower, faster or wrong. A row is one
solution on one workload, GPU, tolerance and clock; its time is the median of the runs of the
current source. A narrow terminal shows fewer columns, and says which it leaves out.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from moebench.core import paths
from moebench.core.arguments import output_file
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.core.names import unknown
from moebench.core.printable import printable
from moebench.core.provenance import CLOCKS
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.reports import changes, comparison, csv_and_json, html
from moebench.reports.measured_with import conditions_of
from moebench.reports.table import Table, one_line
from moebench.reports.terminal import InTerminal, console
from moebench.results import against, measurements, trace_files
from moebench.results.summary import shown_tolerance

# Option -> function that makes the content of the file it names, of all rows
OUTPUTS: dict[str, Callable[[pd.DataFrame], str]] = {
    "html": html.page,
    "csv": csv_and_json.csv_text,
    "json": csv_and_json.json_text,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--traces",
        "--dataset",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="data sets in any layout, folders of JSONL files or such files; default: this "
        "repository's",
    )
    add(
        "--definition",
        metavar="KEY",
        help="of `moebench data`, or a name; default: the first one that was recorded",
    )
    add(
        "--solutions",
        nargs="+",
        default=[],
        metavar="NAME",
        help="default: all that were recorded",
    )
    add(
        "--tolerance",
        choices=list(TOLERANCES),
        help="workload by workload at it; default: relaxed, if it is there",
    )
    add("--clock", choices=CLOCKS, default="events", help="default: events")
    add("--workloads", action="store_true", help="every workload, not three of them")
    add("--rates", action="store_true", help="every workload, in TFLOP/s and TB/s")
    add(
        "--against",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="the traces before a change, as --traces; exit 1 where something is slower than its "
        "runs differ, or wrong now",
    )
    add(
        "--html",
        type=output_file,
        metavar="FILE",
        help="a page to explore, which needs no network",
    )
    add(
        "--csv",
        type=output_file,
        metavar="FILE",
        help="every row, of all definitions unless one is named",
    )
    add("--json", type=output_file, metavar="FILE", help="likewise")


def main(args: argparse.Namespace) -> int:
    default = paths.ROOT if args.clock == "events" else paths.GPU_CLOCK
    traces = args.traces or [default]
    outputs = {name: getattr(args, name) for name in OUTPUTS if getattr(args, name)}

    if args.against:
        for name in ("workloads", "rates", *OUTPUTS):
            if getattr(args, name):
                raise UserError(f"--{name}: not with --against")
        return show_changes(traces, args)

    check_outputs(outputs, traces)
    all_rows, warnings = measurements.load(traces)
    rows = chosen(all_rows, args)
    for name, path in outputs.items():
        write_atomically(path, OUTPUTS[name](rows))
        print(f"wrote {path}")
    if not outputs:
        first = rows.definition.iloc[0]
        show(tables(rows[rows.definition == first], args))
        others = all_rows[all_rows.definition != first]
        names = sorted(set(others.geometry.fillna(others.definition)))
        if names:
            line = f"Others, by --definition: {', '.join(map(one_line, names))}"
            console().print(line, soft_wrap=True)
    show_warnings(warnings)
    return 0


def show_changes(after: list[Path], args: argparse.Namespace) -> int:
    """Print what `against.compare` returns; return the exit status, 1 where anything is worse.

    after: the traces after the change. The table is Markdown where the output is no terminal.
    Raises CannotRun where nothing can be compared.
    """
    all_rows, warnings = against.compare(args.against, after)
    rows = chosen(all_rows, args)
    table = changes.changes_table(rows)
    if sys.stdout.isatty():
        show([table])
    else:
        print(table.markdown(titled=True))
    show_warnings(warnings)

    if not (rows.side == "both").any():
        raise CannotRun(
            "--against: nothing was run on both sides under the same conditions"
        )
    return 1 if rows.mark.isin(against.WORSE).any() else 0


def check_outputs(outputs: dict[str, Path], traces: list[Path]) -> None:
    """Raise UserError where two outputs are one file, or an output is one of the trace files.

    outputs: option -> the file that it names.
    """
    read = {file.resolve() for file in trace_files.trace_files_below(traces)}
    options = {}
    for name, path in outputs.items():
        file = path.resolve()
        if file in read:
            raise UserError(
                f"--{name}: got {path}, want another file: the traces are read from it"
            )
        if file in options:
            raise UserError(
                f"--{name}: got {path}, want another file: --{options[file]} writes it, too"
            )
        options[file] = name


def chosen(rows: pd.DataFrame, args: argparse.Namespace) -> pd.DataFrame:
    """Return the rows that the arguments ask for, those of the catalogue's first definition first.

    Raises UserError, which says what there is, where nothing like it was recorded.
    """
    rows = rows[rows.clock == args.clock]
    if rows.empty:
        raise UserError(
            f"--clock: got {args.clock}, but none of these traces was timed by it"
        )

    if args.definition:
        rows = rows[rows.definition == recorded_definition(args.definition, rows)]
    if args.solutions:
        recorded = rows.solution.unique()
        for name in args.solutions:
            if name not in recorded:
                there = sorted(map(one_line, recorded))
                raise UserError(f"--solutions: {unknown('solution', name, there)}")
        rows = rows[rows.solution.isin(args.solutions)]
    if args.tolerance:
        rows = rows[rows.tolerance == args.tolerance]
        if rows.empty:
            raise UserError(f"--tolerance: nothing is recorded at {args.tolerance}")

    # in the order of `moebench data`, then those that it does not list
    order = list(dict.fromkeys([*catalogue.by_name(), *rows.definition]))
    return rows.sort_values(
        "definition", key=lambda names: names.map(order.index), kind="stable"
    )


def recorded_definition(wanted: str, rows: pd.DataFrame) -> str:
    """Return the name of the definition that a user means by a key or a name.

    Raises UserError for a definition that has no row.
    """
    recorded = set(rows.definition)
    name = catalogue.definition_named(wanted)
    if name in recorded:
        return name
    if wanted in catalogue.keys():
        raise UserError(
            f"--definition: got {wanted}: nothing is recorded; moebench run --save records it"
        )
    names = sorted(one_line(each) for each in recorded)
    raise UserError(f"--definition: {unknown('definition', wanted, names)}")


def tables(rows: pd.DataFrame, args: argparse.Namespace) -> list[Table]:
    """Return a table for each GPU, of which only the last has a caption, as it explains them all.

    rows: of one definition.
    """
    tolerance = args.tolerance or shown_tolerance(rows)
    at_tolerance = rows[rows.tolerance == tolerance]
    draw = comparison.solutions_table
    if args.rates:
        rows = at_tolerance
        draw = comparison.rates_table
    elif args.workloads or args.tolerance:
        rows = at_tolerance
        draw = comparison.times_table

    drawn = []
    gpus = comparison.gpus(rows)
    for gpu in gpus:
        table = draw(rows[rows.hardware == gpu])
        measured_by = conditions_of(at_tolerance[at_tolerance.hardware == gpu])
        title = f"{table.title}\n{measured_by}"
        caption = table.caption if gpu == gpus[-1] else ""
        drawn.append(replace(table, title=title, caption=caption))
    return drawn


def show(drawn: list[Table]) -> None:
    for table in drawn:
        console().print(InTerminal(table))


def show_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        print(printable(warning), file=sys.stderr)
