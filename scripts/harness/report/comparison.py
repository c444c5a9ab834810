"""A comparison as tables; what to use stands first in Markdown, and last in a terminal, where it stays in view."""

import io
from collections.abc import Iterator
from types import SimpleNamespace

import pandas as pd
from rich.console import Console

from harness.operators.catalogue import BY_NAME
from harness.report.table import Cell, Table, decimal
from harness.results.comparison import Comparison, Ratio, RunGroup, Section, tolerance_order
from harness.results.summary import LEVEL, RegimeSummary, is_level

LEVEL_WORDS = f"within {LEVEL - 1:.0%} of it"
MIN_WIDTH = 160
CELL_WIDTH = 25  # of a solution's column with its borders


def cell_entry(cell: SimpleNamespace | None) -> Cell | None:
    """Latency, speed-up and, where there is a bound, latency over bound; or why there is none."""
    if cell is None:
        return None
    mark = "failed" if not cell.passed else "stale" if cell.stale else "best" if cell.level else ""
    before = {"current": "", "stale": "stale ", "unknown": "? "}[cell.source]
    if cell.speedup is None:
        matched = "" if cell.matched is None else f" {cell.matched:.4f}"
        return Cell(f"{before}{cell.status}{matched}", mark)
    over = "" if cell.over_bound is None else f" {cell.over_bound:5.2f}"
    star = "* " if mark == "best" else ""
    return Cell(f"{star}{before}{cell.latency_ms:.3f} {cell.speedup:6.1f}x{over}", mark)


def workload_table(group: RunGroup) -> Table:
    bounds = any(row.workload.bound_ms is not None for row in group.rows)
    rows = []
    for row in group.rows:
        bound = [decimal(row.workload.bound_ms, 3)] if bounds else []
        rows.append([row.workload.seq_len, *bound, *(cell_entry(row.cells.get(name)) for name in group.solutions)])
    return Table(
        title="Workloads",
        head=["T", *(["bound ms"] if bounds else []), *group.solutions],
        sections=[rows],
        caption=f"In a cell: ms, speed-up{', ms/bound' if bounds else ''}; * the fastest, or {LEVEL_WORDS}.",
        words=0,
    )


def summary_table(group: RunGroup) -> Table:
    def entries(summary: RegimeSummary, s: SimpleNamespace) -> list[Cell | str]:
        stale = f" {s.stale} stale" if s.stale else ""
        return [
            summary.regime.name,
            s.solution,
            Cell(f"{s.passed}/{s.workloads}{stale}", "" if s.complete else "failed"),
            s.level,
            Cell(f"* {s.over_fastest:.3f}", "best") if s.solution in summary.best else decimal(s.over_fastest, 3),
            *(decimal(value, 1, "x") for value in (s.mean, s.median, s.least, s.greatest)),
            decimal(s.variation, 2),
            decimal(s.mean_ms, 3),
            decimal(s.over_bound, 2),
        ]

    figures = ["passed", "level", "ms/fastest", "mean", "median", "min", "max", "CV", "mean ms", "ms/bound"]
    return Table(
        title="Speed-ups",
        head=["T", "solution", *figures],
        sections=[[entries(summary, s) for s in summary.summaries] for summary in (group.total, *group.regimes)],
        caption=f"Over the workloads that passed. level: on how many it is the fastest or {LEVEL_WORDS}. "
        "ms/fastest: latency over that of the fastest on each workload, geometric mean; * the least of those that "
        f"passed all, or {LEVEL_WORDS}. "
        "mean to CV: of speed-ups; mean: arithmetic, FIB's score; CV: standard deviation over mean. "
        "ms/bound: geometric mean.",
        words=2,
    )


def range_table(group: RunGroup) -> Table:
    figures = [(f"{r.a} / {r.b}", r.geometric_mean, r.least, r.greatest) for r in group.ratios]
    return Table(
        title="Ratios",
        head=["pair", "geo. mean", "min", "max"],
        sections=[[[pair, *(decimal(value, 3) for value in values)] for pair, *values in figures]],
        caption="How many times as fast the first is as the second, over the workloads where both count.",
    )


def ratio_table(group: RunGroup, ratio: Ratio) -> Table:
    rows = []
    for row in group.rows:
        value = ratio.by_workload.get(row.workload.uuid)
        faster = Cell(f"* {value:.3f}", "best") if value and not is_level(value, 1) else decimal(value, 3)
        rows.append([row.workload.seq_len, decimal(row.ms(ratio.a), 3), decimal(row.ms(ratio.b), 3), faster])
    least, greatest, mean = (decimal(value, 3) for value in (ratio.least, ratio.greatest, ratio.geometric_mean))
    return Table(
        title=f"{ratio.a} against {ratio.b}",
        head=["T", f"{ratio.a} ms", f"{ratio.b} ms", "ratio"],
        sections=[rows],
        caption=f"How many times as fast the first is; * by more than {LEVEL - 1:.0%}; from {least} to {greatest}, "
        f"geometric mean {mean}.",
        words=0,
    )


def matched_columns(section: Section) -> list[tuple[str, str]]:
    """(solution, tolerance's name) of all matched ratios, solution by solution, strict tolerances first."""
    pairs = {(name, t) for of_one in section.matched.values() for name, ratios in of_one.items() for t in ratios}
    return sorted(pairs, key=lambda pair: (pair[0], tolerance_order(pair[1])))


def matched_table(section: Section) -> Table:
    """A column for each solution, in a cell a ratio for each tolerance."""
    names, tolerances = (dict.fromkeys(known) for known in zip(*matched_columns(section), strict=True))
    tolerances = sorted(tolerances, key=tolerance_order)
    rows = []
    for info in section.workloads:
        of_one = section.matched.get(info.uuid, {})
        ratios = ([decimal(of_one.get(name, {}).get(t), 4) for t in tolerances] for name in names)
        rows.append([info.seq_len, *map("  ".join, ratios)])
    return Table(
        title="Matched ratio",
        head=["T", *names],
        sections=[rows],
        caption=f"In a cell: {', '.join(tolerances)}; the share of elements inside, whether it passed or not.",
        words=0,
    )


def choice(summary: RegimeSummary) -> tuple[Cell, str]:
    """The solutions to use, best first, and their scores."""
    if summary.best:
        scores = (decimal(summary.of(name).mean, 1, "x") for name in summary.best)
        return Cell(", ".join(summary.best), "best"), ", ".join(scores)
    untimed = any(s.complete for s in summary.summaries)
    return Cell("not timed") if untimed else Cell("none passes all", "failed"), "-"


def choice_table(comparison: Comparison) -> Table:
    """What to use, by tolerance and number of tokens; with whatever else run groups differ in."""
    rows = [
        (BY_NAME.get(s.definition, s.definition), s.hardware, s.versions_text, group.protocol, group.tolerance_name)
        for s, group in comparison.runs
    ]
    conditions = pd.DataFrame(rows, columns=["definition", "machine", "versions", "protocol", "tolerance"])
    shown = [name for name in conditions if name == "tolerance" or conditions[name].nunique() > 1]
    # The protocol is named only where without it two run groups would look alike.
    others = [name for name in shown if name != "protocol"]
    shown = shown if conditions.duplicated(others).any() else others
    sections = [
        [[*known, summary.regime.name, *choice(summary)] for summary in (group.total, *group.regimes)]
        for known, group in zip(conditions[shown].to_numpy(), comparison.groups, strict=True)
    ]
    return Table(
        title="Which to use",
        head=[*shown, "T", "use", "score"],
        sections=sections,
        caption="use: of those that passed every workload there, the one with the least latency over that of the "
        f"fastest on each workload (geometric mean), and those {LEVEL_WORDS}, best first. score: FIB's, the "
        "arithmetic mean of the speed-ups.",
        words=len(shown) + 3,
    )


def parts_of(comparison: Comparison) -> Iterator[tuple[str, list[str], list[Table]]]:
    """Heading, lines of text and tables of each part of a comparison, or of its pair's ratio alone."""
    for section in comparison.sections:
        yield f"{section.hardware}: {section.definition}", [section.versions_text], []
        for group in section.groups:
            tables = [ratio_table(group, ratio) for ratio in group.ratios]
            if not comparison.pair:
                ranges = [range_table(group)] if group.ratios else []
                tables = [workload_table(group), summary_table(group), *ranges]
            if tables:
                yield group.tolerance, [f"{group.protocol}; {group.when}"], tables
        if not comparison.pair and matched_columns(section):
            yield "Exactness", [], [matched_table(section)]


def markdown(comparison: Comparison) -> str:
    """The whole comparison, or its pair's ratio alone."""
    blocks = [] if comparison.pair else ["## Which to use", choice_table(comparison).markdown()]
    for heading, lines, tables in parts_of(comparison):
        blocks += [f"## {heading}", *lines]
        blocks += [part for table in tables for part in (f"### {table.title}", table.markdown())]
    notes = "\n".join(f"- {note}" for note in comparison.notes)
    return "\n\n".join(filter(None, [*blocks, notes])) + "\n"


def show(comparison: Comparison, console: Console) -> None:
    """Print everything, or the pair's ratio alone."""

    def line(text: str, style: str) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    for heading, lines, tables in parts_of(comparison):
        line(heading, "bold")
        for text in lines:
            line(text, "dim")
        for table in tables:
            console.print(table.terminal())
        console.print()
    for note in comparison.notes:
        line(note, "yellow")
    if not comparison.pair:
        console.print(choice_table(comparison).terminal())


def plain_text(comparison: Comparison) -> str:
    """What `show` prints, without colours and as wide as the solutions need, for a file."""
    most = max(len(group.solutions) for group in comparison.groups)
    out = io.StringIO()
    show(comparison, Console(file=out, width=max(MIN_WIDTH, 20 + CELL_WIDTH * most)))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
