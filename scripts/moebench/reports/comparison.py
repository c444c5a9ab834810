"""Recorded results as tables: one row a solution, one row a workload, and what a change did."""

import math
import re
from collections.abc import Iterable

import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import read_manifest, solution_names
from moebench.reports.table import Cell, Table, as_cell, decimal
from moebench.results.against import LIMIT
from moebench.results.summary import SHOWN, by_solution, shown_of
from moebench.results.measurements import LEVEL

SHOWN_TOKENS = (1, 57, 14107)  # of the main definition; of others the workloads nearest to these
STRICT_FIRST = sorted(TOLERANCES, key=lambda name: TOLERANCES[name].rtol)
LEVEL_WORDS = f"the fastest, or within {LEVEL - 1:.0%} of it"


def gpus(cells: pd.DataFrame) -> list[str]:
    """The GPUs of a definition's rows, the one with known ceilings first, then those with the most
    rows.
    """
    return sorted(
        set(cells.hardware),
        key=lambda gpu: (gpu != MEASURED_ON, -(cells.hardware == gpu).sum(), gpu),
    )


def nearest(tokens: int, among: Iterable[int]) -> int:
    return min(among, key=lambda t: (abs(math.log((t or 0.5) / tokens)), t))


def provenance(cells: pd.DataFrame) -> str:
    """Versions, protocol and dates of rows that are compared, and which packages solutions brought
    along.
    """
    shown = cells[cells.comparable & (cells.tolerance == SHOWN)]
    shown = shown if len(shown) else cells
    of_each = shown.groupby("solution").packages.first().dropna()
    brought = [f"{', '.join(names.index)} with {text}" for text, names in of_each.groupby(of_each)]
    dates = sorted({shown.timestamp.min()[:10], shown.timestamp.max()[:10]})
    versions, protocols = (
        " or ".join(sorted(set(shown[column]))) for column in ("versions", "protocol")
    )
    return "; ".join([versions, protocols, " to ".join(dates), *brought])


def passes(summary: pd.Series, tolerance: str) -> Cell | str:
    """'17/19' at a tolerance, and how many are stale; 'stale' where all are."""
    passed, stale = summary[f"passed_{tolerance}"], summary[f"stale_{tolerance}"]
    if pd.isna(passed) and pd.isna(stale):
        return "not run"
    if stale == summary.workloads:
        return Cell("stale", "stale")
    stale = "" if pd.isna(stale) else f", {stale:.0f} stale"
    return Cell(
        f"{0 if pd.isna(passed) else passed:.0f}/{summary.workloads}{stale}",
        "stale" if stale else "",
    )


def batch_invariant(name: str) -> str | None:
    """Of a solution's manifest: "yes", "no", the T of a range, or within how many; None where it
    says nothing.
    """
    fact = read_manifest(name).facts.get("batch_invariant", "") if name in solution_names() else ""
    ranges = [
        f"{first} to {last}" if last else f"from {first}"
        for first, last in re.findall(r"(\d+)-(\d*)", fact)
    ]
    if ranges:
        return ranges[0] if len(ranges) == 1 else f"within {len(ranges)} ranges"
    return re.split("[;:,]", fact)[0].replace("every T", "yes") or None


def solutions(cells: pd.DataFrame) -> Table:
    """One row a solution, the best first. cells: rows of one definition, GPU and clock."""
    gpu, clock = cells.hardware.iloc[0], cells.clock.iloc[0]
    at, found = shown_of(cells), by_solution(cells)
    shown, tolerances = (
        cells[(cells.tolerance == at) & cells.counts],
        STRICT_FIRST if at in TOLERANCES else [at],
    )
    tokens = list(dict.fromkeys(nearest(t, set(cells.tokens)) for t in SHOWN_TOKENS))
    times = (
        shown[shown.tokens.isin(tokens)]
        .drop_duplicates(["solution", "tokens"])
        .set_index(["solution", "tokens"])
    )
    rows = []
    for name, summary in found.iterrows():
        known = {t: times.loc[(name, t)] for t in tokens if (name, t) in times.index}
        ms = [
            Cell(f"{known[t].ms:.3f}", "best" if known[t].level else "") if t in known else None
            for t in tokens
        ]
        ratio = Cell(
            decimal(summary.over_fastest if summary.complete else None, 2),
            "best" if summary.best else "",
        )
        score = decimal(summary.score if summary.complete else None, 1, "x")
        passed = (passes(summary, tolerance) for tolerance in tolerances)
        rows.append([name, ratio, *ms, score, *passed, batch_invariant(name)])
    by = ", by the GPU's clock" if clock == "gpu" else ""
    return Table(
        title=f"{cells.definition.iloc[0]}\n{gpu}, {at}{' tolerance' if at in TOLERANCES else ''}, ms{by}",
        head=[
            "solution",
            "ratio",
            *(f"T={t}" for t in tokens),
            "score",
            *tolerances,
            "batch-invariant",
        ],
        sections=[rows],
        caption=f"T: tokens in a call. Bold: {LEVEL_WORDS}. ratio: latency over that of the fastest on each workload, "
        "geometric mean. score: FIB's, the mean speed-up over the torch reference. Then workloads passed at each "
        "tolerance, and at which T a token keeps its bits whatever else is in the batch.",
    )


def workloads(cells: pd.DataFrame) -> Table:
    """One row a workload, a column for each solution. cells: rows of one definition, GPU, clock and
    tolerance.
    """
    order, rows = [*by_solution(cells).index], []
    for (tokens, _), of in cells.groupby(["tokens", "uuid"]):
        entries = {one.solution: entry(one) for one in of.itertuples()}
        rows.append([tokens, decimal(of.bound_ms.max(), 3), *(entries.get(name) for name in order)])
    return Table(
        title=f"{cells.definition.iloc[0]}\n{cells.hardware.iloc[0]}, {cells.tolerance_text.iloc[0]}, ms (times the "
        f"bound){', by the GPU clock' if cells.clock.iloc[0] == 'gpu' else ''}",
        head=["T", "bound", *order],
        sections=[rows],
        caption=f"Bold: {LEVEL_WORDS}.",
        words=0,
    )


def entry(one) -> Cell:
    """'0.035 (3.55)'; the status and the share that matched where there is no time; 'stale' before
    both.
    """
    stale = "stale " if one.source == "stale" else ""
    if pd.isna(one.ms):
        share = "" if pd.isna(one.matched) else f" {one.matched:.4f}"
        return Cell(f"{stale}{one.status}{share}", "" if one.passed else "failed")
    over = "" if pd.isna(one.over_bound) else f" ({one.over_bound:.2f})"
    return Cell(f"{stale}{one.ms:.3f}{over}", "best" if one.level else "stale" if stale else "")


def exactness(cells: pd.DataFrame) -> Table:
    """One row a solution: workloads passed at each tolerance, and the lowest share of elements
    inside it.
    """
    found, rows = by_solution(cells), []
    for name in sorted(found.index):
        of = found.loc[name]
        rows.append(
            [
                name,
                *(
                    f"{as_cell(passes(of, t)).text}, {decimal(of[f'matched_{t}'], 3)}"
                    for t in STRICT_FIRST
                ),
            ]
        )
    head = ["solution", *(f"{name} ({TOLERANCES[name].ratio:g})" for name in STRICT_FIRST)]
    return Table(head=head, sections=[rows])


def changes(found: pd.DataFrame) -> Table:
    """What `against.compare` marked, or every cell that both sides have where nothing is marked."""

    def side(cell, name: str) -> str:
        failure, ms = getattr(cell, f"failure_{name}"), getattr(cell, f"ms_{name}")
        return failure if pd.notna(failure) else "passed" if pd.isna(ms) else f"{ms:.4f}"

    both = found[found.side == "both"]
    marked = both[both.mark != ""]
    where = ["hardware", "tolerance", *(["definition"] if both.definition.nunique() > 1 else [])]
    rows = [
        [
            *(
                cell.solution,
                ", ".join(getattr(cell, column) for column in where),
                str(cell.tokens),
            ),
            *(
                side(cell, "before"),
                side(cell, "after"),
                f"{cell.change:+.1%}" if pd.notna(cell.change) else None,
            ),
            Cell(cell.mark, "failed" if cell.mark else ""),
        ]
        for cell in (marked if len(marked) else both).itertuples()
    ]
    counts = {mark: (both.mark == mark).sum() for mark in ("slower", "failing")}
    apart = [
        f"only {side}: {count} cells"
        for side, count in found.side.value_counts().items()
        if side != "both"
    ]
    return Table(
        title=f"{counts['slower']} slower by more than {LIMIT:.0%}, {counts['failing']} newly failing, "
        f"of {len(both)} compared",
        head=["solution", "where", "T", "before, ms", "after, ms", "change", "mark"],
        sections=[rows],
        notes=apart,
        words=2,
    )
