"""What `moebench run` prints: a line for each result as it comes,

    [3/38] T=57 offset=96  NAME  PASSED    0.3120 ms    58.1x  matched 0.9990

and at the end a table for each definition, a row for each solution. commands/run.py evaluates
inside `shown`, and calls the function that it yields for each outcome.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

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
from moebench.reports.measured_with import conditions
from moebench.reports.table import Cell, Table, decimals
from moebench.reports.terminal import InTerminal
from moebench.results.measurements import merge_runs, timed_calls
from moebench.results.spread import tied_with_fastest, with_ranges
from moebench.results.trace_rows import rows_from

FASTEST_CAPTION = (
    "fastest: on how many workloads it is, or tied, as the ranges of runs overlap"
)
INDENT = "    "
BAR_COLUMNS = (
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.description}", markup=False),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@contextmanager
def shown(
    plan: Plan, place: str, console: Console
) -> Iterator[Callable[[Outcome], None]]:
    """Return a context that yields a function to show an outcome, above a bar of what is done.

    When the context ends the bar goes and the tables come, after Ctrl-C, too. place: the cluster
    that the run is on, "" for this machine.
    """
    for note in plan.notes:
        print_line(console, note)

    results = Results(plan, place, console)
    try:
        with results.bar:
            yield results.show
    finally:
        show_tables(plan, results.outcomes, console)


class Results:
    """Prints the results of a run as they come, each with its number, and moves a bar.

    outcomes: those that were shown. shown_count: how many of `total` results were.
    """

    def __init__(self, plan: Plan, place: str, console: Console):
        self.plan = plan
        self.place = place
        self.console = console
        self.outcomes: list[Outcome] = []
        self.shown_count = 0
        self.total = sum(len(task.names) for task in plan)
        self.bar = Progress(*BAR_COLUMNS, console=console, transient=True)
        self.bar_task = self.bar.add_task(place, total=self.total)

    def show(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        for line in lines(outcome, self.plan.device.on_gpu):
            if not line.startswith(INDENT):
                self.shown_count += 1
                line = f"[{self.shown_count}/{self.total}] {line}"
            print_line(self.console, line)

        if self.plan.verbose:
            for name, result in outcome.evaluated.items():
                if result.log:
                    print_line(self.console, f"the log of {name}:\n{result.log}")
        description = self.place or printable(outcome.task.label)
        self.bar.update(
            self.bar_task, completed=self.shown_count, description=description
        )


def print_line(console: Console, text: str) -> None:
    """Print a text, in which control characters are shown, without breaking its lines."""
    console.print(printable(text), soft_wrap=True)


def lines(outcome: Outcome, timed: bool) -> Iterator[str]:
    """Yield a line for each solution that was evaluated, or was to be, and below it INDENTed lines
    with the reasons for its status.

    timed: whether times are shown.
    """
    label = outcome.task.label
    for name, reason in outcome.lost.items():
        yield f"{label}  {name}  not evaluated: {reason}"

    for name, result in outcome.evaluated.items():
        yield f"{label}  {name}  {result_text(result, timed)}"
        for reason in result.reasons:
            yield f"{INDENT}{reason}"


def result_text(result: EvaluatedSolution, timed: bool) -> str:
    """Return status, ms, speed-up and the share that matched, as far as there are any: "PASSED
    0.0352 ms     85.6x  matched 0.9990".
    """
    evaluation = result.trace.evaluation
    parts = [evaluation.status.value]
    if timed and result.passed:
        performance = evaluation.performance
        parts.append(f"{performance.latency_ms:8.4f} ms")
        parts.append(f"{performance.speedup_factor:7.1f}x")

    extra = evaluation.correctness.extra if evaluation.correctness else None
    if extra and "matched_ratio" in extra:
        parts.append(f"matched {extra['matched_ratio']:.4f}")
    return "  ".join(parts)


def show_tables(plan: Plan, outcomes: list[Outcome], console: Console) -> None:
    """Print the tables of each definition, and where its traces are."""
    for part in plan.parts.values():
        name = part.definition.name
        of_part = [each for each in outcomes if each.task.definition_name == name]
        for table in tables(plan, part, of_part):
            print_line(console, table.title)
            console.print(InTerminal(replace(table, title="")))

        kept = [outcome for outcome in of_part if part.keeps(outcome.task)]
        saved = sum(len(outcome.evaluated) for outcome in kept)
        if saved:
            print_line(console, f"{saved} traces saved in {part.path}")


def tables(plan: Plan, part: Part, outcomes: list[Outcome]) -> Iterator[Table]:
    """Yield a table for each kind of GPU that the traces are from: those that Ray calls an H100 may
    be several products.
    """
    traces = list(part.kept)
    for outcome in outcomes:
        traces += [result.trace for result in outcome.evaluated.values()]
    rows = rows_of_part(part, traces)

    devices = list(rows.hardware.unique())
    if outcomes and not devices:
        devices = [plan.device.hardware]
    for hardware in devices:
        yield table(plan, part, hardware, rows[rows.hardware == hardware], outcomes)


def table(
    plan: Plan, part: Part, hardware: str, rows: pd.DataFrame, outcomes: list[Outcome]
) -> Table:
    """Return a row for each solution, and below it what failed and what was skipped.

    Means are arithmetic, over the workloads that passed. rows: of `rows_of_part`.
    """
    figures = figures_of(plan, rows)
    shown = figures.reindex(part.solutions).reset_index(names="solution")
    shown.insert(1, "passed", passed_cells(part, rows, outcomes))

    notes = captions(figures.columns)
    for outcome in outcomes:
        for name, reason in outcome.lost.items():
            notes.append(f"not evaluated: {name} on {outcome.task.label}: {reason}")
    notes += not_passed(part, rows, outcomes)
    notes += part.skipped
    measured_by = conditions(str(plan.tolerance), plan.protocol, plan.clock)
    title = f"{part.definition.name}\n{hardware}\n{measured_by}"
    return Table.of_frame(shown, title=title, notes=notes)


def rows_of_part(part: Part, traces: list[Trace]) -> pd.DataFrame:
    """Return a row for each solution, workload and GPU, merged from all runs by
    `measurements.merge_runs`.

    solution: the name in the plan. tied: whether it is the fastest on the workload, or tied with
    it.
    """
    names = {packed.name: name for name, packed in part.solutions.items()}
    rows = rows_from(traces)
    rows["solution"] = [names.get(trace.solution, trace.solution) for trace in traces]
    rows = with_ranges(merge_runs(rows, ["hardware", "solution", "uuid"]))
    rows["tied"] = tied_with_fastest(rows, rows.ms, [rows.hardware, rows.uuid])
    return rows


def passed_cells(part: Part, rows: pd.DataFrame, outcomes: list[Outcome]) -> list[Cell]:
    """Return on how many workloads each solution passed, of how many it was to be evaluated on:
    "17/19".
    """
    asked = set(zip(rows.solution, rows.uuid, strict=True))
    for outcome in outcomes:
        asked.update((name, outcome.task.workload.uuid) for name in outcome.lost)
    asked_of = Counter(name for name, _ in asked)
    passed_of = Counter(rows.solution[rows.passed])

    cells = []
    for name in part.solutions:
        mark = "good" if passed_of[name] == asked_of[name] else "failed"
        cells.append(Cell(f"{passed_of[name]}/{asked_of[name]}", mark))
    return cells


def figures_of(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each solution, and a column for each figure that this run has: means over
    the workloads that passed, on how many it is the fastest or tied with it, and the least share of
    elements within each tolerance.
    """
    solutions = rows.groupby("solution")
    figures = pd.DataFrame(index=solutions.groups)
    if plan.device.on_gpu:
        figures["mean ms"] = decimals(solutions.ms.mean(), 4)
        figures["speed-up"] = decimals(solutions.speedup.mean(), 1, "x")
        if timed_calls(plan.protocol) != 1:
            figures["fastest"] = solutions.tied.sum().astype(object)
    for name in TOLERANCES:
        least = solutions[f"matched_{name}"].min()
        if least.notna().any():
            figures[name] = decimals(least, 4)
    return figures


def captions(columns: Collection[str]) -> list[str]:
    """Return notes that explain the columns."""
    texts = []
    if "fastest" in columns:
        texts.append(FASTEST_CAPTION)
    tolerances = [name for name in TOLERANCES if name in columns]
    if tolerances:
        names = ", ".join(tolerances)
        texts.append(f"{names}: the lowest share of elements within that tolerance")
    return texts


def not_passed(part: Part, rows: pd.DataFrame, outcomes: list[Outcome]) -> list[str]:
    """Return a line for each solution and status other than PASSED, with the workloads."""
    labels = {outcome.task.workload.uuid: outcome.task.label for outcome in outcomes}
    failed = rows[~rows.passed]
    notes = []
    for name in part.solutions:
        solutions = failed[failed.solution == name]
        for status, of_status in solutions.groupby("status"):
            sizes = "T=" + of_status.tokens.astype(str)
            where = of_status.uuid.map(labels).fillna(sizes)
            notes.append(f"{name}: {status} on {', '.join(where)}")
    return notes
