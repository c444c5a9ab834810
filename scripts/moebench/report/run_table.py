"""What a run prints: a line for each verdict as it comes, and at the end a table for each
definition, a row a solution.

The table is drawn from the traces' DataFrame, `results.table.of_traces`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

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

from moebench.judging.evaluate import Outcome
from moebench.judging.plan import Part, Plan
from moebench.judging.tolerances import TOLERANCES
from moebench.report.table import Cell, Table, decimal
from moebench.results.table import LEVEL, NUMBERS, of_traces


@contextmanager
def shown(plan: Plan, place: str, console: Console) -> Iterator[Callable[[Outcome], None]]:
    """A function that shows an outcome, once it is recorded, above a bar that goes when the context
    ends.

    Tables come then, after Ctrl-C, too. place: what the run is on, beside the device.
    """
    outcomes, total, done = [], sum(len(cell.names) for cell in plan), 0
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )

    def show(outcome: Outcome) -> None:
        nonlocal done
        outcomes.append(outcome)
        for text in lines(outcome, plan.device.on_gpu):
            done += not text.startswith(" ")
            console.print(
                text if text.startswith(" ") else f"[{done}/{total}] {text}", soft_wrap=True
            )
        for name, verdict in outcome.evaluated.items() if plan.verbose else ():
            if verdict.log:
                console.print(f"the log of {name}:\n{verdict.log}", soft_wrap=True)
        bar.update(task, completed=done, description=place or outcome.task.label)

    for line in plan.notes:
        console.print(line, soft_wrap=True)
    try:
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(place, total=total)
            yield show
    finally:
        for part in plan.parts.values():
            own = [outcome for outcome in outcomes if outcome.task.definition == part.full.name]
            for table in tables(plan, part, own):
                console.print(table.title, soft_wrap=True)
                console.print(replace(table, title="").terminal())
            if traces := sum(len(outcome.evaluated) for outcome in own if part.keeps(outcome.task)):
                console.print(f"{traces} traces saved in {part.path}", soft_wrap=True)


def lines(outcome: Outcome, timed: bool) -> Iterator[str]:
    """For each solution: status, ms and speed-up if it was timed and passed, the share that
    matched; why it failed.
    """
    label = outcome.task.label
    for name, why in outcome.lost.items():
        yield f"{label}  {name}  NOT JUDGED: {why}"
    for name, verdict in outcome.evaluated.items():
        evaluation = verdict.trace.evaluation
        parts = [label, name, evaluation.status.value]
        if timed and verdict.passed:
            speed = evaluation.performance
            parts.append(f"{speed.latency_ms:8.4f} ms  {speed.speedup_factor:7.1f}x")
        extra = evaluation.correctness and evaluation.correctness.extra
        if (
            extra and "matched_ratio" in extra
        ):  # within the run's tolerance, where FIB's judgement has it
            parts.append(f"matched {extra['matched_ratio']:.4f}")
        yield from ["  ".join(parts), *(f"    {reason}" for reason in verdict.reasons)]


def tables(plan: Plan, part: Part, outcomes: list[Outcome]) -> Iterator[Table]:
    """One for each kind of device that the traces are from: no table mixes two, or Ray's H100 would
    be several.
    """
    by_device: dict[str, list[Trace]] = defaultdict(list)
    for trace in (
        *part.kept,
        *(verdict.trace for outcome in outcomes for verdict in outcome.evaluated.values()),
    ):
        by_device[trace.evaluation.environment.hardware].append(trace)
    if not by_device and outcomes:
        by_device[plan.device.hardware] = []
    for hardware, traces in by_device.items():
        yield table(plan, part, hardware, traces, outcomes)


def table(
    plan: Plan, part: Part, hardware: str, traces: list[Trace], outcomes: list[Outcome]
) -> Table:
    """One row a solution, what was skipped below it; means are arithmetic, over the workloads that
    passed.
    """
    names = {packed.name: name for name, packed in part.solutions.items()}
    cells = of_traces(traces).reindex(
        columns=["uuid", "tokens", "status", "passed", *NUMBERS]
    )  # of no trace, too
    cells["solution"] = [names.get(trace.solution, trace.solution) for trace in traces]
    cells["level"] = cells.ms <= LEVEL * cells.groupby("uuid").ms.transform("min")
    timed = plan.device.on_gpu
    known = [name for name in TOLERANCES if cells[f"matched_{name}"].notna().any()]
    failed = {(each.task.label, name): why for each in outcomes for name, why in each.lost.items()}
    rows, labels = [], {each.task.workload.uuid: each.task.label for each in outcomes}
    notes = [f"NOT JUDGED: {name} on {label}: {why}" for (label, name), why in failed.items()]
    for name in part.solutions:
        own = cells[cells.solution == name]
        asked, passed = len(own) + sum(name == other for _, other in failed), int(own.passed.sum())
        row = [name, Cell(f"{passed}/{asked}", "good" if passed == asked else "failed")]
        if timed:
            speedup = own.speedup[own.ms.notna()].mean()
            row += [decimal(own.ms.mean(), 4), decimal(speedup, 1, "x"), int(own.level.sum())]
        rows.append(row + [decimal(own[f"matched_{each}"].min(), 4) for each in known])
        for status, wrong in own[~own.passed.astype(bool)].groupby("status"):
            where = ", ".join(
                labels.get(each.uuid, f"T={each.tokens}") for each in wrong.itertuples()
            )
            notes.append(f"{name}: {status} on {where}")
    times = ["mean ms", "speed-up", "fastest"] if timed else []
    captions = ["fastest: on how many workloads it is, or within 3% of it"] if timed else []
    captions += (
        [f"{', '.join(known)}: the lowest share of elements within that tolerance"] if known else []
    )
    clock = ", by the GPU's clock" if plan.clock == "gpu" else ""
    title = f"{part.full.name}\n{hardware}, {plan.tolerance}{clock}"
    return Table(
        ["solution", "passed", *times, *known],
        [rows],
        title,
        notes=[*captions, *notes, *part.skipped],
    )
