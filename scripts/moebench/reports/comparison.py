"""The tables of `moebench compare` and of the pages with a row for each solution: times, passes at
each tolerance, how far runs lie apart; and what their cells say.

They are drawn from rows of `measurements.load`.
"""

import re

import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import read_manifest, solution_names
from moebench.reports.table import Cell, Row, Table, decimal, token_heads
from moebench.results.spread import ALIKE, SEVERAL_RUNS, nearest_tokens
from moebench.results.summary import by_solution, counted, shown_tolerance

# Of the main definition; of others the workloads nearest to these.
SHOWN_TOKENS = (1, 57, 14107)

STRICT_FIRST = sorted(TOLERANCES, key=lambda name: TOLERANCES[name].rtol)
TIED_WORDS = "the fastest, or tied with it, as the ranges of their runs overlap"
SOLUTIONS_CAPTION = (
    f"T: tokens in a call. Bold: {TIED_WORDS}. ratio: latency over that of the fastest on each "
    "workload, geometric mean. score: FIB's, the mean speed-up over the torch reference; it and "
    "the ratio need all workloads. Then workloads passed at each tolerance, and at which T a token "
    "keeps its bits whatever else is in the batch. -: not measured."
)


def gpus(rows: pd.DataFrame) -> list[str]:
    """Return the GPUs of these rows, MEASURED_ON first, then those with the most rows."""
    counts = rows.hardware.value_counts().sort_index()
    most_first = counts.sort_values(ascending=False, kind="stable")
    return sorted(most_first.index, key=lambda gpu: gpu != MEASURED_ON)


def solutions(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> Table:
    """Return a row for each solution, the best first.

    rows: of one definition, GPU and clock. verdicts: rows of every clock, whose passes are counted;
    without them those of `rows` are.
    """
    tolerance = shown_tolerance(rows)
    tolerances = STRICT_FIRST if tolerance in TOLERANCES else [tolerance]
    tokens = shown_tokens(rows)
    times = times_by_tokens(counted(rows, tolerance))

    table_rows = []
    for name, means in by_solution(rows, verdicts).iterrows():
        row: Row = [name, ratio_cell(means)]
        row += [times.get((name, count)) for count in tokens]
        row.append(decimal(means.score, 1, "x") if means.complete else None)
        row += [passes(means, each) for each in tolerances]
        row.append(batch_invariant(name))
        table_rows.append(row)

    named = f"{tolerance} tolerance" if tolerance in TOLERANCES else tolerance
    times_head = token_heads(tokens)
    return Table(
        title=title(rows, named, "ms"),
        head=["solution", "ratio", *times_head, "score", *tolerances, "batch-invariant"],
        sections=[table_rows],
        caption=SOLUTIONS_CAPTION,
        important=(tolerance,),
    )


def title(rows: pd.DataFrame, *contents: str) -> str:
    """Return the definition of rows, and below it the GPU, what the cells hold, and the clock if it
    is not that of CUDA events.
    """
    parts = [rows.hardware.iloc[0], *contents]
    if rows.clock.iloc[0] == "gpu":
        parts.append("by the GPU's clock")
    return f"{rows.definition.iloc[0]}\n{', '.join(parts)}"


def shown_tokens(rows: pd.DataFrame) -> list[int]:
    """Return the recorded token counts nearest to SHOWN_TOKENS, each once."""
    recorded = set(rows.tokens)
    shown = [nearest_tokens(count, recorded) for count in SHOWN_TOKENS]
    return list(dict.fromkeys(shown))


def ratio_cell(means: pd.Series) -> Cell | None:
    """Return the latency over the fastest's, with its range where every cell has several runs.

    None where not every workload was timed. means: a row of `by_solution`.
    """
    if not means.complete:
        return None

    ratio = means.over_fastest
    if pd.isna(ratio) or means.runs == 1:
        text = decimal(ratio, 2)
    else:
        text = with_range(ratio, means.over_fastest_low, means.over_fastest_high, 2)
    return Cell(text, "best" if means.best else "")


def with_range(value: float, low: float, high: float, digits: int) -> str:
    """Return "0.312 ±0.004", half of the range from low to high."""
    half = (high - low) / 2
    return f"{value:.{digits}f} ±{half:.{digits}f}"


def times_by_tokens(rows: pd.DataFrame) -> dict[tuple[str, int], Cell]:
    """Return (solution, T) -> the time of the first workload with so many tokens."""
    cells = {}
    for row in rows.itertuples():
        cell = Cell(ms_text(row), "best" if row.tied else "")
        cells.setdefault((row.solution, row.tokens), cell)
    return cells


def ms_text(row) -> str:
    """Return a row's time, with its range where that is of its own runs.

    row: of a DataFrame's itertuples.
    """
    if row.range_from != SEVERAL_RUNS:
        return f"{row.ms:.3f}"
    return with_range(row.ms, row.ms_low, row.ms_high, 3)


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

    passed = 0 if pd.isna(passed) else passed
    text = f"{passed:.0f}/{means.workloads}"
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


def exactness(rows: pd.DataFrame) -> Table:
    """Return a row for each solution: passes at each tolerance, and the least share inside it."""
    table_rows = []
    for name, means in by_solution(rows).sort_index().iterrows():
        row: Row = [name]
        for tolerance in STRICT_FIRST:
            passed = passes(means, tolerance).text
            matched = decimal(means[f"matched_{tolerance}"], 3)
            row.append(f"{passed}, {matched}")
        table_rows.append(row)

    head = ["solution"]
    for name in STRICT_FIRST:
        head.append(f"{name} ({TOLERANCES[name].ratio:g})")
    return Table(head, [table_rows])


def ranges(rows: pd.DataFrame, between_cards: pd.Series) -> Table:
    """Return how far runs lie apart: by GPU, clock, protocol and T, of cells that were repeated.

    between_cards: of repeats.py; for MEASURED_ON by the GPU's clock.
    """
    repeated = rows[(rows.range_from == SEVERAL_RUNS) & rows.counts]
    repeated = repeated.assign(width=repeated.ms_high / repeated.ms_low - 1)

    table_rows = []
    for key, cells in repeated.groupby([*ALIKE, "tokens"]):
        runs = decimal(cells.runs.median(), 0)
        median = f"{cells.width.median():.1%}"
        widest = f"{cells.width.max():.1%}"
        other_card = None
        hardware, clock, _, tokens = key
        if (hardware, clock) == (MEASURED_ON, "gpu") and tokens in between_cards:
            other_card = f"{between_cards[tokens]:.1%}"
        table_rows.append([*key, len(cells), runs, median, widest, other_card])
    head = ["GPU", "clock", "protocol", "T", "cells", "runs", "median range", "widest"]
    return Table([*head, "another card"], [table_rows], word_columns=3)
