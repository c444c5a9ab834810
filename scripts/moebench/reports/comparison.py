"""The tables of `moebench compare`: a row for each solution, a row for each workload, and what a
change did.
"""

import re

import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import read_manifest, solution_names
from moebench.reports.table import Cell, Entry, Table, decimal
from moebench.results.against import WORSE
from moebench.results.measurements import ranked
from moebench.results.spread import (
    ALIKE,
    ASSUMED,
    NOT_KNOWN,
    OTHER_CELLS,
    OWN_RUNS,
    TRIALS,
    nearest,
)
from moebench.results.summary import SHOWN, by_solution, shown_tolerance

# Of the main definition; of others the workloads nearest to these.
SHOWN_TOKENS = (1, 57, 14107)

STRICT_FIRST = sorted(TOLERANCES, key=lambda name: TOLERANCES[name].rtol)
LEVEL_WORDS = "the fastest, or tied with it, as the ranges of their runs overlap"
SOLUTIONS_CAPTION = (
    f"T: tokens in a call. Bold: {LEVEL_WORDS}. ratio: latency over that of the fastest on each "
    "workload, geometric mean. score: FIB's, the mean speed-up over the torch reference; it and "
    "the ratio need all workloads. Then workloads passed at each tolerance, and at which T a token "
    "keeps its bits whatever else is in the batch. -: not measured."
)
ONE_CALL_CAPTION = "Times of a single call, none of which is called the fastest."


def gpus(rows: pd.DataFrame) -> list[str]:
    """Return the GPUs of these rows, MEASURED_ON first, then those with the most rows."""
    counts = rows.hardware.value_counts()
    return sorted(counts.index, key=lambda gpu: (gpu != MEASURED_ON, -counts[gpu], gpu))


def provenance(rows: pd.DataFrame) -> str:
    """Return versions, protocol, dates, runs and solutions' packages of the compared rows."""
    compared = rows[rows.comparable & (rows.tolerance == SHOWN)]
    if not len(compared):
        compared = rows

    versions = " or ".join(sorted(set(compared.versions)))
    protocols = " or ".join(sorted(set(compared.protocol)))
    first = compared.timestamp.min()[:10]
    last = compared.timestamp.max()[:10]
    dates = first if first == last else f"{first} to {last}"
    parts = [versions, protocols, dates]
    if compared.ms.notna().any():
        parts.append(ranges_text(compared))

    by_name = compared.set_index("solution")
    for packages, names in solutions_by_value(by_name.packages):
        parts.append(f"{names} with {packages}")
    for reason, names in solutions_by_value(by_name[by_name.counts].earlier_code):
        parts.append(f"{names}: of earlier code: {reason}")
    return "; ".join(parts)


def ranges_text(rows: pd.DataFrame) -> str:
    """Return of how many runs times are, and whence the ranges are that they are compared by."""
    timed = rows[rows.ms.notna()]
    runs = timed[timed.range_from == OWN_RUNS].runs
    parts = []
    if len(runs):
        counts = f"{runs.min()}" if runs.min() == runs.max() else f"{runs.min()} to {runs.max()}"
        parts.append(f"medians of {counts} runs, ±: half of their range")
    if (timed.range_from == OTHER_CELLS).any():
        parts.append("a single run: the widest range of the solution at the nearest T with more")
    if (timed.range_from == TRIALS).any():
        parts.append("one run: the range of its trials")
    if (timed.range_from == NOT_KNOWN).any():
        parts.append(f"one run, whose range is taken to be {ASSUMED - 1:.0%}")
    return ", ".join(parts)


def ranges(rows: pd.DataFrame) -> Table:
    """Return how far runs lie apart: by GPU, clock, protocol and T, of cells that were repeated."""
    repeated = rows[(rows.range_from == OWN_RUNS) & rows.counts]
    width = repeated.ms_high / repeated.ms_low - 1

    table_rows = []
    for key, widths in width.groupby([repeated[column] for column in (*ALIKE, "tokens")]):
        runs = repeated.runs[widths.index].median()
        median = f"{widths.median():.1%}"
        table_rows.append([*key, len(widths), f"{runs:.0f}", median, f"{widths.max():.1%}"])
    head = ["GPU", "clock", "protocol", "T", "cells", "runs", "median range", "widest"]
    return Table(head=head, sections=[table_rows], words=3)


def with_range(value: float, low: float, high: float, digits: int) -> str:
    """Return "0.312 ±0.004", half of the range from low to high."""
    return f"{value:.{digits}f} ±{(high - low) / 2:.{digits}f}"


def ms_text(row) -> str:
    """Return a row's time, with its range where that is of its own runs.

    row: of a DataFrame's itertuples.
    """
    if row.range_from != OWN_RUNS:
        return f"{row.ms:.3f}"
    return with_range(row.ms, row.ms_low, row.ms_high, 3)


def solutions_by_value(column: pd.Series) -> list[tuple[str, str]]:
    """Return (value, "a, b") for each value that a column has in rows of solutions a and b."""
    values = column.groupby(level="solution").first().dropna()
    return [(value, ", ".join(rows.index)) for value, rows in values.groupby(values)]


def clock_text(rows: pd.DataFrame) -> str:
    """Return what a title says of the clock, nothing for CUDA events."""
    return ", by the GPU's clock" if rows.clock.iloc[0] == "gpu" else ""


def solutions(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> Table:
    """Return a row for each solution, the best first.

    rows: of one definition, GPU and clock. verdicts: rows of every clock, whose passes are counted;
    else these rows' are.
    """
    tolerance = shown_tolerance(rows)
    tolerances = STRICT_FIRST if tolerance in TOLERANCES else [tolerance]
    recorded = set(rows.tokens)
    tokens = list(dict.fromkeys(nearest(count, recorded) for count in SHOWN_TOKENS))
    times = times_by_tokens(rows[(rows.tolerance == tolerance) & rows.counts])

    table_rows = []
    for name, means in by_solution(rows, verdicts).iterrows():
        if not means.complete:  # not every workload was timed
            means[["over_fastest", "score"]] = None
        score = decimal(means.score, 1, "x")
        table_rows.append(
            [
                name,
                Cell(ratio_text(means), "best" if means.best else ""),
                *(times.get((name, count)) for count in tokens),
                score,
                *(passes(means, each) for each in tolerances),
                batch_invariant(name),
            ]
        )

    words = f"{tolerance} tolerance" if tolerance in TOLERANCES else tolerance
    head = ["solution", "ratio", *(f"T={count}" for count in tokens), "score", *tolerances]
    return Table(
        title=f"{rows.definition.iloc[0]}\n{rows.hardware.iloc[0]}, {words}, ms{clock_text(rows)}",
        head=[*head, "batch-invariant"],
        sections=[table_rows],
        caption=SOLUTIONS_CAPTION,
        important=(tolerance,),
    )


def ratio_text(means: pd.Series) -> str:
    """Return the latency over the fastest's, with its range where every cell has several runs.

    means: a row of `by_solution`.
    """
    if pd.isna(means.over_fastest) or means.runs == 1:
        return decimal(means.over_fastest, 2)
    return with_range(means.over_fastest, means.over_fastest_low, means.over_fastest_high, 2)


def times_by_tokens(rows: pd.DataFrame) -> dict[tuple[str, int], Cell]:
    """Return (solution, T) -> the time of the first workload with so many tokens."""
    cells = {}
    for row in rows.itertuples():
        cell = Cell(ms_text(row), "best" if row.level else "")
        cells.setdefault((row.solution, row.tokens), cell)
    return cells


def passes(means: pd.Series, tolerance: str) -> Cell:
    """Return "17/19" at a tolerance, and how many are stale; "stale" where all are.

    means: a row of `by_solution`.
    """
    passed = means[f"passed_{tolerance}"]
    stale = means[f"stale_{tolerance}"]
    if pd.isna(passed) and pd.isna(stale):
        return Cell("not run")
    if stale == means.workloads:
        return Cell("stale", "stale")

    text = f"{0 if pd.isna(passed) else passed:.0f}/{means.workloads}"
    if pd.isna(stale):
        return Cell(text)
    return Cell(f"{text}, {stale:.0f} stale", "stale")


def batch_invariant(solution: str) -> str | None:
    """Return at which T a token keeps its bits in every batch, as the solution's manifest says it.

    That is "yes", "no", a range of T, or how many ranges; None where the manifest says nothing.
    """
    if solution not in solution_names():
        return None
    fact = read_manifest(solution).facts.get("batch_invariant", "")

    ranges = re.findall(r"(\d+)-(\d*)", fact)
    if len(ranges) > 1:
        return f"within {len(ranges)} ranges"
    if ranges:
        first, last = ranges[0]
        return f"{first} to {last}" if last else f"from {first}"
    first_words = re.split("[;:,]", fact)[0]
    return first_words.replace("every T", "yes") or None


def workloads(rows: pd.DataFrame) -> Table:
    """Return a row for each workload, a column for each solution.

    rows: of one definition, GPU, clock and tolerance.
    """
    order = list(by_solution(rows).index)
    table_rows = []
    for (tokens, _), of_workload in rows.groupby(["tokens", "uuid"]):
        cells = {row.solution: time_cell(row) for row in of_workload.itertuples()}
        bound = decimal(of_workload.bound_ms.max(), 3)
        table_rows.append([tokens, bound, *(cells.get(name) for name in order)])

    definition = rows.definition.iloc[0]
    where = f"{rows.hardware.iloc[0]}, {rows.tolerance_text.iloc[0]}"
    return Table(
        title=f"{definition}\n{where}, ms (times the bound){clock_text(rows)}",
        head=["T", "bound", *order],
        sections=[table_rows],
        caption=f"Bold: {LEVEL_WORDS}." if ranked(rows.protocol).any() else ONE_CALL_CAPTION,
        words=0,
    )


def time_cell(row) -> Cell:
    """Return "0.035 (3.55)", ms and times the bound; the status and what matched without a time.

    "stale" stands before both. row: of a DataFrame's itertuples.
    """
    is_stale = row.source == "stale"
    stale = "stale " if is_stale else ""
    if pd.isna(row.ms):
        share = "" if pd.isna(row.matched) else f" {row.matched:.4f}"
        return Cell(f"{stale}{row.status}{share}", "" if row.passed else "failed")

    over_bound = "" if pd.isna(row.over_bound) else f" ({row.over_bound:.2f})"
    text = f"{stale}{ms_text(row)}{over_bound}"
    if row.level:
        return Cell(text, "best")
    return Cell(text, "stale" if is_stale else "")


def exactness(rows: pd.DataFrame) -> Table:
    """Return a row for each solution: passes at each tolerance, and the least share inside it."""
    means = by_solution(rows)
    table_rows = []
    for name in sorted(means.index):
        row: list[Entry] = [name]
        for tolerance in STRICT_FIRST:
            matched = decimal(means.loc[name, f"matched_{tolerance}"], 3)
            row.append(f"{passes(means.loc[name], tolerance).text}, {matched}")
        table_rows.append(row)

    head = ["solution", *(f"{name} ({TOLERANCES[name].ratio:g})" for name in STRICT_FIRST)]
    return Table(head=head, sections=[table_rows])


def changes(rows: pd.DataFrame) -> Table:
    """Return the rows that `against.compare` marked."""
    both = rows[rows.side == "both"]
    marked = both[both.mark != ""]
    several_definitions = both.definition.nunique() > 1

    counts = marked.mark.value_counts()
    words = {"slower": "slower", "failing": "newly failing", "faster": "faster"}
    parts = [f"{counts.get(mark, 0)} {text}" for mark, text in words.items()]
    notes = [f"A change: the ranges of both sides' runs do not overlap; {ranges_of_both(both)}"]
    for side, count in rows.side.value_counts().items():
        if side != "both":
            notes.append(f"only {side}: {count} cells")

    return Table(
        title=f"{', '.join(parts)}, of {len(both)} compared",
        head=["solution", "where", "T", "before, ms", "after, ms", "change", "mark"],
        sections=[[change_row(row, several_definitions) for row in marked.itertuples()]],
        notes=notes,
        words=2,
        keys=3,
        important=("change", "mark"),
    )


def ranges_of_both(rows: pd.DataFrame) -> str:
    """Return `ranges_text` of the cells of both sides. rows: of `against.compare`."""
    sides = []
    for side in ("before", "after"):
        columns = {f"{name}_{side}": name for name in ("ms", "runs", "range_from")}
        sides.append(rows[list(columns)].rename(columns=columns))
    return ranges_text(pd.concat(sides))


def change_row(row, with_definition: bool) -> list[Entry]:
    """Return one row of `changes`, with the definition's key where it has one.

    row: of a DataFrame's itertuples.
    """
    where = [row.hardware, row.tolerance]
    if with_definition:
        where.append(catalogue.by_name().get(row.definition, row.definition))
    before = side_text(row.failure_before, row.ms_before, row.runs_before)
    after = side_text(row.failure_after, row.ms_after, row.runs_after)
    return [
        row.solution,
        ", ".join(where),
        row.tokens,
        before,
        after,
        f"{row.change:+.1%}" if pd.notna(row.change) else None,
        Cell(row.mark, "failed" if row.mark in WORSE else "good"),
    ]


def side_text(failure: str | float, ms: float, runs: float) -> str:
    """Return a side's status where it failed, else its time, or "passed" if it was not timed."""
    if pd.notna(failure):
        return failure
    if pd.isna(ms):
        return "passed"
    return f"{ms:.4f}" if runs == 1 else f"{ms:.4f} ({runs:.0f} runs)"
