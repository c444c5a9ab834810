"""Means over the workloads of one definition on one GPU, a row for each solution."""

import numpy as np
import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.packing.manifest import read_manifest, solution_names
from moebench.results.measurements import LEVEL, MATCHED

# The tolerance whose times are shown: every solution that was timed passed it.
SHOWN = "relaxed"


def geometric_mean(values: pd.Series) -> float:
    """Return the geometric mean of the values that are not NaN."""
    return np.exp(np.log(values).mean())


def shown_tolerance(rows: pd.DataFrame) -> str:
    """Return SHOWN, or the tolerance of most rows where none has it.

    So it is with traces of others, which do not say their tolerance.
    """
    if (rows.tolerance == SHOWN).any():
        return SHOWN
    return rows.tolerance.mode()[0]


def by_solution(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means by solution, the best one first.

    rows: of `measurements.load`, of one definition, GPU and clock. Columns, of the rows that count
    at the tolerance `shown_tolerance`:
    over_fastest, over_bound: geometric means;
    mean_ms, score: arithmetic means of ms and of the speed-ups (FIB's score);
    timed: how many rows those are;
    complete: whether every workload passed and was timed;
    best: complete, and its over_fastest level with the least of those that are.

    For each tolerance, NaN where it was not run:
    passed_<tolerance>: workloads that passed, of rows that are not stale;
    stale_<tolerance>: workloads whose row is stale;
    matched_<tolerance>: the least share of elements inside it, over the workloads.

    workloads: how many the definition has.
    """
    shown = shown_tolerance(rows)
    solutions = sorted(set(rows.solution))
    workloads = rows.workloads.max()

    counted = rows[(rows.tolerance == shown) & rows.counts]
    means = counted.groupby("solution").agg(
        over_fastest=("over_fastest", geometric_mean),
        over_bound=("over_bound", geometric_mean),
        mean_ms=("ms", "mean"),
        score=("speedup", "mean"),
        timed=("ms", "size"),
    )
    means = means.reindex(solutions).join(passes(rows, shown))

    means["workloads"] = workloads
    means["complete"] = (means.timed == workloads) & (means[f"passed_{shown}"] == workloads)
    least = means.over_fastest.where(means.complete).min()
    means["best"] = means.complete & (means.over_fastest <= LEVEL * least)
    return means.sort_values(["complete", "over_fastest"], ascending=[False, True], kind="stable")


def passes(rows: pd.DataFrame, shown: str) -> pd.DataFrame:
    """Return passed_, stale_ and matched_ of each tolerance, as in `by_solution`."""
    fresh = rows[rows.source != "stale"]
    stale = rows[rows.source == "stale"]

    columns = {}
    for name in dict.fromkeys([*TOLERANCES, shown]):
        at_tolerance = fresh[fresh.tolerance == name]
        columns[f"passed_{name}"] = at_tolerance.groupby("solution").passed.sum()
        columns[f"stale_{name}"] = stale[stale.tolerance == name].groupby("solution").size()
    matched = fresh.groupby("solution")[MATCHED].min()
    return pd.concat([pd.DataFrame(columns), matched], axis=1)


def best_solution(rows: pd.DataFrame, tolerance: str = SHOWN) -> str | None:
    """Return the solution to use at a tolerance, None where none passed it on every workload.

    Candidates are complete and passed it. Among those level with the fastest of them, the one with
    the least mean latency is returned.
    """
    means = by_solution(rows)
    able = means[means.complete & (means[f"passed_{tolerance}"] == means.workloads)]
    level = able[able.over_fastest <= LEVEL * able.over_fastest.min()]
    return level.mean_ms.idxmin() if len(level) else None


def base_of(solution: str) -> str:
    """Return the solution that this one is a variant of, with other constants; else itself."""
    if solution not in solution_names():
        return solution
    return read_manifest(solution).based_on or solution


def speedup_over_others(rows: pd.DataFrame, solution: str) -> pd.Series:
    """Return by solution how many times as fast `solution` is, the closest competitor first.

    These are geometric means over the workloads. Variants of one base are not compared, nor what is
    not complete.
    """
    counted = rows[(rows.tolerance == SHOWN) & rows.counts]
    ms = counted.pivot(index="uuid", columns="solution", values="ms")

    factors = {}
    for name in ms:
        complete = ms[name].notna().all()
        if complete and base_of(name) != base_of(solution):
            factors[name] = geometric_mean(ms[name] / ms[solution])
    return pd.Series(factors, dtype=float).sort_values()
