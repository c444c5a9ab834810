"""The tables of `moebench compare`, some of which the pages show, too. They are drawn from rows of
`measurements.load`:

solutions_table             a row for each solution: times at three T, passes at each tolerance
exactness_table             a row for each solution: how exact it is at each tolerance
ranges_table                how far runs of one cell lie apart
times_table, rates_table    a row for each workload, a column for each solution

Below each table stand the functions that make its cells.
"""

import re
from collections.abc import Callable, Collection

import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import read_manifest, solution_names
from moebench.reports.table import (
    Cell,
    Table,
    decimal,
    decimals,
    frame_rows,
    token_heads,
)
from moebench.results.measurements import is_ranked
from moebench.results.spread import ALIKE, SEVERAL_RUNS, nearest_tokens
from moebench.results.summary import by_solution, counted, shown_tolerance

# T of the columns with times: of workloads of the main definition. Of other definitions the nearest
# workloads are shown.
SHOWN_TOKENS = (1, 57, 14107)

STRICT_FIRST = sorted(TOLERANCES, key=lambda name: TOLERANCES[name].rtol)
TIED_WORDS = "the fastest, or tied with it, as the ranges of their runs overlap"
SOLUTIONS_CAPTION = (
    f"T: tokens in a call. Bold: {TIED_WORDS}. ratio: latency over that of the fastest on each "
    "workload, geometric mean. score: FIB's, the mean speed-up over the torch reference; it and "
    "the ratio need all workloads. Then workloads passed at each tolerance, and at which T a token "
    "keeps its bits whatever else is in the batch. -: not measured."
)
TIMES_CAPTION = f"Bold: {TIED_WORDS}."
ONE_CALL_CAPTION = "Times of a single call, none of which is called the fastest."
RATES_CAPTION = (
    "TFLOP/s, and after the stroke TB/s: the FLOPs and bytes of the roofline bound, each FLOP done "
    "and each byte moved once, over the time. What a kernel moves or computes beyond that does not "
    "count. Bold: as among the times."
)


def gpus(rows: pd.DataFrame) -> list[str]:
    """Return the GPUs of these rows, MEASURED_ON first, then those with the most rows."""
    counts = rows.hardware.value_counts().sort_index()
    most_first = counts.sort_values(ascending=False, kind="stable")
    return sorted(most_first.index, key=lambda gpu: gpu != MEASURED_ON)


def solutions_table(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> Table:
    """Return a row for each solution, the best first.

    rows: of one definition, GPU and clock. verdicts: the rows in which passes are counted, by
    default the same; rows of every clock for instance.
    """
    tolerance = shown_tolerance(rows)
    tolerances = STRICT_FIRST if tolerance in TOLERANCES else [tolerance]
    recorded = set(rows.tokens)
    shown = [nearest_tokens(count, recorded) for count in SHOWN_TOKENS]
    tokens = list(dict.fromkeys(shown))

    means = by_solution(rows, verdicts)
    times = times_by_tokens(counted(rows, tolerance), tokens)
    table = times.reindex(means.index)
    table.insert(0, "ratio", means.apply(ratio_cell, axis="columns"))
    table["score"] = decimals(means.score.where(means.complete), 1, "x")
    for each in tolerances:
        table[each] = means.apply(passes, axis="columns", tolerance=each)
    table["batch-invariant"] = table.index.map(batch_invariant)
    table = table.reset_index(names="solution")

    tolerance_text = f"{tolerance} tolerance" if tolerance in TOLERANCES else tolerance
    return Table.of_frame(
        table,
        title=title(rows, tolerance_text, "ms"),
        caption=SOLUTIONS_CAPTION,
        important=(tolerance,),
    )


def title(rows: pd.DataFrame, *contents: str) -> str:
    """Return a table's title: the rows' definition, and below it their GPU, what the cells hold
    (contents), and their clock if it is not that of CUDA events.
    """
    parts = [rows.hardware.iloc[0], *contents]
    if rows.clock.iloc[0] == "gpu":
        parts.append("by the GPU's clock")
    return f"{rows.definition.iloc[0]}\n{', '.join(parts)}"


def ratio_cell(means: pd.Series) -> Cell | None:
    """Return the latency over that of the fastest, "1.31", with its range where every cell has
    several runs; None where not every workload was timed.

    means: a row of `by_solution`.
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
    """Return a value and half of its range: "0.312 ±0.004"."""
    half = (high - low) / 2
    return f"{value:.{digits}f} ±{half:.{digits}f}"


def times_by_tokens(rows: pd.DataFrame, tokens: Collection[int]) -> pd.DataFrame:
    """Return a row for each solution, and a column "T=57" for each token count: the time of the
    first workload with so many tokens.
    """
    first = rows.drop_duplicates(["solution", "tokens"])
    cells = []
    for row in first.itertuples():
        cells.append(Cell(ms_text(row), "best" if row.tied else ""))

    first = first.assign(cell=cells)
    times = first.pivot(index="solution", columns="tokens", values="cell")
    times = times.reindex(columns=tokens)
    return times.set_axis(token_heads(tokens), axis="columns")


def ms_text(row) -> str:
    """Return a row's time, with its range where that was taken from several runs of the cell.

    row: as itertuples yields it.
    """
    if row.range_from != SEVERAL_RUNS:
        return f"{row.ms:.3f}"
    return with_range(row.ms, row.ms_low, row.ms_high, 3)


def passes(means: pd.Series, tolerance: str) -> Cell:
    """Return how many workloads passed at a tolerance: "17/19", "16/19, 2 stale", or "stale" where
    all are.

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
    """Return at which T a token keeps its bits in every batch, by the solution's manifest: "yes",
    "no", a range of T, or how many ranges; None where the manifest does not say it.
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


def exactness_table(rows: pd.DataFrame) -> Table:
    """Return a row for each solution: passes at each tolerance, and the least share of elements
    inside it.
    """
    means = by_solution(rows).sort_index()
    table = pd.DataFrame({"solution": means.index}, index=means.index)
    for name in STRICT_FIRST:
        passed = means.apply(passes, axis="columns", tolerance=name)
        matched = decimals(means[f"matched_{name}"], 3)
        heading = f"{name} ({TOLERANCES[name].ratio:g})"
        table[heading] = passed.map(text_of) + ", " + matched
    return Table.of_frame(table)


def text_of(cell: Cell) -> str:
    return cell.text


def ranges_table(rows: pd.DataFrame, between_cards: pd.Series) -> Table:
    """Return a row for each GPU, clock, protocol and T: how far the runs of one cell lie apart.

    between_cards: T -> how far two cards of MEASURED_ON lie apart by the GPU's clock.
    """
    has_runs = rows.range_from == SEVERAL_RUNS
    repeated = rows[has_runs & rows.counts]
    repeated = repeated.assign(width=repeated.ms_high / repeated.ms_low - 1)
    table = repeated.groupby([*ALIKE, "tokens"], as_index=False).agg(
        cells=("width", "size"),
        runs=("runs", "median"),
        median=("width", "median"),
        widest=("width", "max"),
    )
    has_other_card = (table.hardware == MEASURED_ON) & (table.clock == "gpu")
    table["other_card"] = table.tokens.map(between_cards).where(has_other_card)

    table["runs"] = table.runs.round().astype(int)
    shares = ["median", "widest", "other_card"]
    table[shares] = decimals(100 * table[shares], 1, "%")
    head = ["GPU", "clock", "protocol", "T", "cells", "runs", "median range", "widest"]
    return Table([*head, "another card"], [frame_rows(table)], word_columns=3)


def times_table(rows: pd.DataFrame) -> Table:
    """Return a row for each workload: its bound, and each solution's ms and times the bound.

    rows: of one definition, GPU, clock and tolerance.
    """
    table = workload_cells(rows, time_cell)
    bounds = rows.groupby(["tokens", "uuid"]).bound_ms.max()
    table.insert(0, "bound", decimals(bounds, 3))
    return Table.of_frame(
        by_tokens(table),
        title=title(rows, rows.tolerance_text.iloc[0], "ms (times the bound)"),
        caption=TIMES_CAPTION if is_ranked(rows).any() else ONE_CALL_CAPTION,
        word_columns=0,
    )


def rates_table(rows: pd.DataFrame) -> Table:
    """Return a row for each workload: each solution's TFLOP/s and TB/s.

    rows: of one definition, GPU, clock and tolerance.
    """
    table = workload_cells(rows, rate_cell)
    return Table.of_frame(
        by_tokens(table),
        title=title(rows, "TFLOP/s / TB/s"),
        caption=RATES_CAPTION,
        word_columns=0,
    )


def workload_cells(
    rows: pd.DataFrame, cell_of: Callable[..., Cell | None]
) -> pd.DataFrame:
    """Return a row for each workload, by T and uuid, and a column for each solution, the best one
    first.

    cell_of: makes a cell of a solution's row, as itertuples yields it.
    """
    cells = rows.assign(cell=[cell_of(row) for row in rows.itertuples()])
    table = cells.pivot(index=["tokens", "uuid"], columns="solution", values="cell")
    return table[by_solution(rows).index]


def by_tokens(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of `workload_cells` with T in the first column, and no uuid."""
    return table.droplevel("uuid").reset_index(names="T")


def time_cell(row) -> Cell:
    """Return ms and times the bound, "0.035 (3.55)", or without a time the status and the share
    that matched. "stale" stands before them where the row is.
    """
    is_stale = row.source == "stale"
    text = "stale " if is_stale else ""
    if pd.isna(row.ms):
        text += row.status
        if pd.notna(row.matched):
            text += f" {row.matched:.4f}"
        return Cell(text, "" if row.passed else "failed")

    text += ms_text(row)
    if pd.notna(row.over_bound):
        text += f" ({row.over_bound:.2f})"
    if row.tied:
        return Cell(text, "best")
    return Cell(text, "stale" if is_stale else "")


def rate_cell(row) -> Cell | None:
    """Return TFLOP/s and TB/s, "1210 / 0.85"; None without a time or without the workload's FLOPs,
    and where the row is stale.
    """
    is_known = pd.notna(row.ms) and pd.notna(row.flops)
    if not is_known or row.source == "stale":
        return None
    tera_flops = row.flops / row.ms * 1e-9
    tera_bytes = row.bytes / row.ms * 1e-9
    digits = 0 if tera_flops >= 10 else 1
    text = f"{tera_flops:.{digits}f} / {tera_bytes:.2f}"
    return Cell(text, "best" if row.tied else "")
