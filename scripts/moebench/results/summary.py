"""Means over the workloads of one definition on one GPU, a row for each solution."""

import numpy as np
import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.packing.manifest import read_manifest, solution_names
from moebench.results.table import LEVEL

SHOWN = "relaxed"  # the tolerance whose times are shown: every solution that was timed passed it


def geometric_mean(values: pd.Series) -> float:
    """Of those that are known: a workload without a local expert has no bound."""
    return np.exp(np.log(values).mean())


def shown_of(cells: pd.DataFrame) -> str:
    """SHOWN, or the tolerance of most rows where none has it, as of traces of others, which do not
    say theirs.
    """
    return SHOWN if (cells.tolerance == SHOWN).any() else cells.tolerance.mode()[0]


def by_solution(cells: pd.DataFrame) -> pd.DataFrame:
    """cells: rows of `table.load` of one definition, GPU and clock. Indexed by solution, the best
    one first.

    complete: passed and timed on every workload at `shown_of`. Then, of the rows there that count:
    over_fastest and over_bound, geometric means; mean_ms and score, the arithmetic means of ms and
    of the speed-ups (FIB's score). best: whether its over_fastest is level with the least of those
    that are complete. For each tolerance passed_<tolerance>, of rows that are not stale, and
    stale_<tolerance>; NaN where it was not run. matched_<tolerance>: the least share over the
    workloads.
    """
    at = shown_of(cells)
    shown = cells[(cells.tolerance == at) & cells.counts].groupby("solution")
    means = {name: (name, geometric_mean) for name in ("over_fastest", "over_bound")}
    means |= {"mean_ms": ("ms", "mean"), "score": ("speedup", "mean"), "timed": ("ms", "size")}
    found = shown.agg(**means).reindex(sorted(set(cells.solution)))
    workloads = cells.workloads.max()
    fresh, stale = cells[cells.source != "stale"], cells[cells.source == "stale"]
    for name in {**TOLERANCES, at: None}:
        found[f"passed_{name}"] = fresh[fresh.tolerance == name].groupby("solution").passed.sum()
        found[f"stale_{name}"] = stale[stale.tolerance == name].groupby("solution").size()
    matched = [f"matched_{name}" for name in TOLERANCES]
    found[matched] = fresh.groupby("solution")[matched].min()
    complete = (found.timed == workloads) & (found[f"passed_{at}"] == workloads)
    least = found.over_fastest.where(complete).min()
    found = found.assign(
        workloads=workloads,
        complete=complete,
        best=complete & (found.over_fastest <= LEVEL * least),
    )
    return found.sort_values(["complete", "over_fastest"], ascending=[False, True], kind="stable")


def to_use(cells: pd.DataFrame, tolerance: str = SHOWN) -> str | None:
    """The solution to use at a tolerance: of the complete ones that passed it everywhere, and of
    those level with the fastest of these, the one with the least mean latency; None where none
    passed."""
    found = by_solution(cells)
    able = found[found.complete & (found[f"passed_{tolerance}"] == found.workloads)]
    level = able[able.over_fastest <= LEVEL * able.over_fastest.min()]
    return level.mean_ms.idxmin() if len(level) else None


def source_of(solution: str) -> str:
    """The solution whose source this one is, with other constants: its base, or itself."""
    return (read_manifest(solution).based_on if solution in solution_names() else None) or solution


def ahead(cells: pd.DataFrame, solution: str) -> pd.Series:
    """How many times as fast `solution` is as each complete solution of another source, geometric
    means over the workloads, the nearest first."""
    shown = cells[(cells.tolerance == SHOWN) & cells.counts]
    ms = shown.pivot(index="uuid", columns="solution", values="ms")
    others = [
        name for name in ms if ms[name].notna().all() and source_of(name) != source_of(solution)
    ]
    return pd.Series(
        {name: geometric_mean(ms[name] / ms[solution]) for name in others}, dtype=float
    ).sort_values()
