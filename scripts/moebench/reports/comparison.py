"""The tables of `moebench compare`: a row for each solution, a row for each workload, and what a
change did.
"""

import math
import re
from collections.abc import Iterable

import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import read_manifest, solution_names
from moebench.reports.table import Cell, Entry, Table, decimal
from moebench.results.against import LIMIT
from moebench.results.measurements import LEVEL, ranked
from moebench.results.summary import SHOWN, by_solution, shown_tolerance

# Of the main definition; of others the workloads nearest to these.
SHOWN_TOKENS = (1, 57, 14107)

STRICT_FIRST = sorted(TOLERANCES, key=lambda name: TOLERANCES[name].rtol)
LEVEL_WORDS = f"the fastest, or within {LEVEL - 1:.0%} of it"
SOLUTIONS_CAPTION = (
    f"T: tokens in a call. Bold: {LEVEL_WORDS}. ratio: latency over that of the fastest on each "
    "workload, geometric mean. score: FIB's, the mean speed-up over the torch reference. Then "
    "workloads passed at each tolerance, and at which T a token keeps its bits whatever else is in "
    "the batch."
)
ONE_CALL_CAPTION = "Times of a single call, none of which is called the fastest."


def gpus(rows: pd.DataFrame) -> list[str]:
    """Return the GPUs of these rows, MEASURED_ON first, then those with the most rows."""
    counts = rows.hardware.value_counts()
    return sorted(counts.index, key=lambda gpu: (gpu != MEASURED_ON, -counts[gpu], gpu))


def nearest(tokens: int, among: Iterable[int]) -> int:
    """Return the token count nearest to `tokens` on a logarithmic scale, the lesser of two."""
    return min(among, key=lambda other: (abs(math.log((other or 0.5) / tokens)), other))


def provenance(rows: pd.DataFrame) -> str:
    """Return versions, protocol, dates and solutions' packages of the rows that are compared."""
    compared = rows[rows.comparable & (rows.tolerance == SHOWN)]
    if not len(compared):
        compared = rows

    versions = " or ".join(sorted(set(compared.versions)))
    protocols = " or ".join(sorted(set(compared.protocol)))
    first = compared.timestamp.min()[:10]
    last = compared.timestamp.max()[:10]
    dates = first if first == last else f"{first} to {last}"
    parts = [versions, protocols, dates]

    by_name = compared.set_index("solution")
    for packages, names in solutions_by_value(by_name.packages):
        parts.append(f"{names} with {packages}")
    for reason, names in solutions_by_value(by_name[by_name.counts].earlier_code):
        parts.append(f"{names}: of earlier code: {reason}")
    return "; ".join(parts)


def solutions_by_value(column: pd.Series) -> list[tuple[str, str]]:
    """Return (value, "a, b") for each value that a column has in rows of solutions a and b."""
    values = column.groupby(level="solution").first().dropna()
    return [(value, ", ".join(rows.index)) for value, rows in values.groupby(values)]


def clock_text(rows: pd.DataFrame) -> str:
    """Return what a title says of the clock, nothing for CUDA events."""
    return ", by the GPU's clock" if rows.clock.iloc[0] == "gpu" else ""


def solutions(rows: pd.DataFrame) -> Table:
    """Return a row for each solution, the best first. rows: of one definition, GPU and clock."""
    tolerance = shown_tolerance(rows)
    tolerances = STRICT_FIRST if tolerance in TOLERANCES else [tolerance]
    recorded = set(rows.tokens)
    tokens = list(dict.fromkeys(nearest(count, recorded) for count in SHOWN_TOKENS))
    times = times_by_tokens(rows[(rows.tolerance == tolerance) & rows.counts])

    table_rows = []
    for name, means in by_solution(rows).iterrows():
        if not means.complete:  # not every workload was timed
            means[["over_fastest", "score"]] = None
        ratio = decimal(means.over_fastest, 2)
        score = decimal(means.score, 1, "x")
        table_rows.append(
            [
                name,
                Cell(ratio, "best" if means.best else ""),
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


def times_by_tokens(rows: pd.DataFrame) -> dict[tuple[str, int], Cell]:
    """Return (solution, T) -> the time of the first workload with so many tokens."""
    cells = {}
    for row in rows.itertuples():
        cell = Cell(f"{row.ms:.3f}", "best" if row.level else "")
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
    text = f"{stale}{row.ms:.3f}{over_bound}"
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
    """Return what `against.compare` marked, or all that both sides have where nothing is marked."""
    both = rows[rows.side == "both"]
    marked = both[both.mark != ""]
    shown = marked if len(marked) else both
    several_definitions = both.definition.nunique() > 1

    slower = (both.mark == "slower").sum()
    failing = (both.mark == "failing").sum()
    notes = []
    for side, count in rows.side.value_counts().items():
        if side != "both":
            notes.append(f"only {side}: {count} cells")

    return Table(
        title=f"{slower} slower by more than {LIMIT:.0%}, {failing} newly failing, "
        f"of {len(both)} compared",
        head=["solution", "where", "T", "before, ms", "after, ms", "change", "mark"],
        sections=[[change_row(row, several_definitions) for row in shown.itertuples()]],
        notes=notes,
        words=2,
        keys=3,
        important=("change", "mark"),
    )


def change_row(row, with_definition: bool) -> list[Entry]:
    """Return one row of `changes`, with the definition's key where it has one.

    row: of a DataFrame's itertuples.
    """
    where = [row.hardware, row.tolerance]
    if with_definition:
        where.append(catalogue.by_name().get(row.definition, row.definition))
    return [
        row.solution,
        ", ".join(where),
        row.tokens,
        side_text(row.failure_before, row.ms_before),
        side_text(row.failure_after, row.ms_after),
        f"{row.change:+.1%}" if pd.notna(row.change) else None,
        Cell(row.mark, "failed" if row.mark else ""),
    ]


def side_text(failure: str | float, ms: float) -> str:
    """Return a side's status where it failed, else its time, or "passed" if it was not timed."""
    if pd.notna(failure):
        return failure
    return "passed" if pd.isna(ms) else f"{ms:.4f}"
