"""What a run prints: a line for each result as it comes, and at the end a table for each
definition, a row for each solution.

The tables are drawn from the traces' DataFrame, `measurements.rows_from`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pandas as pd
from flashinfer_bench import Trace
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from moebench.core.printable import printable
from moebench.judging.evaluate import EvaluatedSolution, Outcome
from moebench.judging.plan import Part, Plan
from moebench.judging.tolerances import TOLERANCES
from moebench.reports.table import Cell, Entry, Table, decimal
from moebench.reports.versions import conditions
from moebench.results.measurements import NUMBERS, cells, rows_from, timed_calls
from moebench.results.spread import tied_with_fastest, with_ranges

FASTEST_CAPTION = "fastest: on how many workloads it is, or tied, as the ranges of runs overlap"
INDENT = "    "
NO_ROWS = ["solution", "uuid", "tokens", "status", "passed", *NUMBERS, "level"]

Summary = Callable[[pd.DataFrame], Entry]  # of a solution's rows


@contextmanager
def shown(plan: Plan, place: str, console: Console) -> Iterator[Callable[[Outcome], None]]:
    """Yield a function that shows an outcome, once it is recorded, above a bar of what is done.

    When the context ends the bar goes and the tables come, after Ctrl-C, too. place: what the run
    is on, beside the device.
    """
    for note in plan.notes:
        print_line(console, note)

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    outcomes: list[Outcome] = []
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            results = ResultLines(plan, place, console, bar)

            def show(outcome: Outcome) -> None:
                outcomes.append(outcome)
                results.show(outcome)

            yield show
    finally:
        show_tables(plan, outcomes, console)


class ResultLines:
    """Prints the results of a run as they come, each with its number, and moves the bar."""

    def __init__(self, plan: Plan, place: str, console: Console, bar: Progress):
        self.plan = plan
        self.place = place
        self.console = console
        self.bar = bar
        self.total = sum(len(task.names) for task in plan)
        self.done = 0
        self.task = bar.add_task(place, total=self.total)

    def show(self, outcome: Outcome) -> None:
        for line in lines(outcome, self.plan.device.on_gpu):
            if not line.startswith(INDENT):
                self.done += 1
                line = f"[{self.done}/{self.total}] {line}"
            print_line(self.console, line)

        for name, result in outcome.evaluated.items():
            if self.plan.verbose and result.log:
                print_line(self.console, f"the log of {name}:\n{result.log}")
        description = self.place or printable(outcome.task.label)
        self.bar.update(self.task, completed=self.done, description=description)


def print_line(console: Console, text: str) -> None:
    """Print a text, in which control characters are shown, without breaking its lines."""
    console.print(printable(text), soft_wrap=True)


def show_tables(plan: Plan, outcomes: list[Outcome], console: Console) -> None:
    """Print the tables of each definition, and where its traces are."""
    for part in plan.parts.values():
        of_part = [outcome for outcome in outcomes if outcome.task.definition == part.full.name]
        for table in tables(plan, part, of_part):
            console.print(printable(table.title), soft_wrap=True)
            console.print(replace(table, title="").terminal())

        saved = sum(len(outcome.evaluated) for outcome in of_part if part.keeps(outcome.task))
        if saved:
            print_line(console, f"{saved} traces saved in {part.path}")


def lines(outcome: Outcome, timed: bool) -> Iterator[str]:
    """Yield a line for each solution that was judged, or was to be, and below it the reasons.

    The line has the status, the share that matched, and of a solution that was timed and passed ms
    and speed-up. The reasons are indented.
    """
    label = outcome.task.label
    for name, reason in outcome.lost.items():
        yield f"{label}  {name}  NOT JUDGED: {reason}"

    for name, result in outcome.evaluated.items():
        yield f"{label}  {name}  {result_text(result, timed)}"
        for reason in result.reasons:
            yield f"{INDENT}{reason}"


def result_text(result: EvaluatedSolution, timed: bool) -> str:
    """Return "PASSED    0.0352 ms     85.6x  matched 0.9990", without what there is not."""
    evaluation = result.trace.evaluation
    parts = [evaluation.status.value]
    if timed and result.passed:
        performance = evaluation.performance
        parts.append(f"{performance.latency_ms:8.4f} ms  {performance.speedup_factor:7.1f}x")

    extra = evaluation.correctness.extra if evaluation.correctness else None
    if extra and "matched_ratio" in extra:
        parts.append(f"matched {extra['matched_ratio']:.4f}")
    return "  ".join(parts)


def tables(plan: Plan, part: Part, outcomes: list[Outcome]) -> Iterator[Table]:
    """Yield a table for each kind of device that the traces are from.

    No table mixes two: what Ray calls an H100 is several products.
    """
    by_device: dict[str, list[Trace]] = defaultdict(list)
    for trace in part.kept:
        by_device[trace.evaluation.environment.hardware].append(trace)
    for outcome in outcomes:
        for result in outcome.evaluated.values():
            trace = result.trace
            by_device[trace.evaluation.environment.hardware].append(trace)

    if not by_device and outcomes:
        by_device[plan.device.hardware] = []
    for hardware, traces in by_device.items():
        yield table(plan, part, hardware, traces, outcomes)


def table(
    plan: Plan, part: Part, hardware: str, traces: list[Trace], outcomes: list[Outcome]
) -> Table:
    """Return a row for each solution, and below it what failed and what was skipped.

    Means are arithmetic, over the workloads that passed.
    """
    rows = measured(part, traces)
    columns = columns_of(plan, rows)
    judged = set(zip(rows.solution, rows.uuid, strict=True))
    lost = {(name, each.task.workload.uuid) for each in outcomes for name in each.lost} - judged

    table_rows = []
    for name in part.solutions:
        of_solution = rows[rows.solution == name]
        passed = passed_cell(of_solution, sum(lost_name == name for lost_name, _ in lost))
        summaries = [summary(of_solution) for summary in columns.values()]
        table_rows.append([name, passed, *summaries])

    measured_by = conditions(str(plan.tolerance), plan.protocol, plan.clock)
    return Table(
        title=f"{part.full.name}\n{hardware}\n{measured_by}",
        head=["solution", "passed", *columns],
        sections=[table_rows],
        notes=[
            *captions(columns),
            *not_judged(outcomes),
            *not_passed(part, rows, outcomes),
            *part.skipped,
        ],
    )


def columns_of(plan: Plan, rows: pd.DataFrame) -> dict[str, Summary]:
    """Return heading -> summary of a solution's rows, for what this run has measured."""
    columns: dict[str, Summary] = {}
    if plan.device.on_gpu:
        columns["mean ms"] = lambda of_solution: decimal(of_solution.ms.mean(), 4)
        columns["speed-up"] = lambda of_solution: decimal(of_solution.speedup.mean(), 1, "x")
        if timed_calls(plan.protocol) != 1:
            columns["fastest"] = lambda of_solution: int(of_solution.level.sum())

    for tolerance in TOLERANCES:
        if rows[f"matched_{tolerance}"].notna().any():
            columns[tolerance] = partial(least_share, tolerance)
    return columns


def least_share(tolerance: str, rows: pd.DataFrame) -> str:
    """Return the least share of elements within a tolerance."""
    return decimal(rows[f"matched_{tolerance}"].min(), 4)


def captions(columns: Collection[str]) -> list[str]:
    """Return what explains the columns."""
    texts = []
    if "fastest" in columns:
        texts.append(FASTEST_CAPTION)
    tolerances = [name for name in TOLERANCES if name in columns]
    if tolerances:
        names = ", ".join(tolerances)
        texts.append(f"{names}: the lowest share of elements within that tolerance")
    return texts


def measured(part: Part, traces: list[Trace]) -> pd.DataFrame:
    """Return a row for each solution and workload, by the solutions' names in the plan, whose
    numbers are of all its runs, and whether it is level.
    """
    if not traces:
        return pd.DataFrame(columns=NO_ROWS)

    names = {packed.name: name for name, packed in part.solutions.items()}
    rows = rows_from(traces)
    rows["solution"] = [names.get(trace.solution, trace.solution) for trace in traces]
    rows = with_ranges(cells(rows, ["solution", "uuid"]))
    rows["passed"] = rows.passed.astype(bool)
    rows["level"] = tied_with_fastest(rows, rows.ms, [rows.uuid])
    return rows


def passed_cell(rows: pd.DataFrame, not_judged: int) -> Cell:
    """Return "17/19": how many of a solution's workloads it passed. rows: of those judged."""
    passed = int(rows.passed.sum())
    asked = len(rows) + not_judged
    return Cell(f"{passed}/{asked}", "good" if passed == asked else "failed")


def not_judged(outcomes: list[Outcome]) -> list[str]:
    """Return a line for each solution and workload that was not judged, with the reason."""
    notes = []
    for outcome in outcomes:
        for name, reason in outcome.lost.items():
            notes.append(f"NOT JUDGED: {name} on {outcome.task.label}: {reason}")
    return notes


def not_passed(part: Part, rows: pd.DataFrame, outcomes: list[Outcome]) -> list[str]:
    """Return a line for each solution and status other than PASSED, with the workloads."""
    labels = {outcome.task.workload.uuid: outcome.task.label for outcome in outcomes}
    notes = []
    for name in part.solutions:
        failed = rows[(rows.solution == name) & ~rows.passed]
        for status, of_status in failed.groupby("status"):
            where = [labels.get(row.uuid, f"T={row.tokens}") for row in of_status.itertuples()]
            notes.append(f"{name}: {status} on {', '.join(where)}")
    return notes
