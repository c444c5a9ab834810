"""Means over the workloads of one definition on one GPU: a row for each solution, which of them is
the best, and how much faster it is than the others.

The rows of `measurements.load` go in; reports/ draws its tables of what comes out.
"""

import numpy as np
import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.packing.manifest import read_manifest, solution_names
from moebench.results.trace_rows import MATCHED

# The tolerance at which times are shown, as every solution that was timed passed it
SHOWN_TOLERANCE = "relaxed"

# Columns whose mean over workloads is a geometric one
GEOMETRIC = ["over_fastest", "over_fastest_low", "over_fastest_high", "over_bound"]


def geometric_mean(values: pd.Series | pd.DataFrame) -> float | pd.Series:
    """Return the geometric mean of the values that are not NaN; for a DataFrame of each column."""
    return np.exp(np.log(values).mean())


def shown_tolerance(rows: pd.DataFrame) -> str:
    """Return SHOWN_TOLERANCE, or the tolerance of most rows where none has it.

    None has it among traces of other projects, which do not say their tolerance.
    """
    if (rows.tolerance == SHOWN_TOLERANCE).any():
        return SHOWN_TOLERANCE
    return rows.tolerance.mode()[0]


def counted(rows: pd.DataFrame, tolerance: str = SHOWN_TOLERANCE) -> pd.DataFrame:
    """Return the rows at a tolerance whose times count."""
    return rows[(rows.tolerance == tolerance) & rows.counts]


def by_solution(
    rows: pd.DataFrame, verdicts: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return a row for each solution, the best one first.

    rows: of `measurements.load`, of one definition, GPU and clock. verdicts: the rows in which
    passes are counted, by default the same; rows of every clock for instance.

    Columns made of the rows that count at `shown_tolerance`:
    over_fastest, over_bound: geometric means;
    over_fastest_low, over_fastest_high: geometric means of the ends of the cells' ranges;
    mean_ms, score: arithmetic means of ms and of the speed-ups (FIB's score);
    runs: how many runs the cell with the fewest has;
    timed: how many of these rows there are;
    complete: whether every workload passed and was timed;
    best: whether it is complete and tied with the fastest complete solution (`tied_with_best`).

    Columns for each tolerance, NaN where it was not run:
    passed_<tolerance>: workloads that passed, of rows that are not stale;
    stale_<tolerance>: workloads whose row is stale;
    matched_<tolerance>: the least share of elements inside it, over the workloads.

    workloads: how many the definition has.
    """
    if verdicts is None:
        verdicts = rows
    shown = shown_tolerance(rows)
    timed = counted(rows, shown)
    solutions = sorted(set(rows.solution))

    means = means_of_times(timed).reindex(solutions)
    means = means.join(passes(verdicts, shown))
    means["workloads"] = rows.workloads.max()

    is_timed = means.timed == means.workloads
    has_passed = means[f"passed_{shown}"] == means.workloads
    means["complete"] = is_timed & has_passed
    complete = means[means.complete]
    means["best"] = means.index.isin(tied_with_best(complete).index)
    return means.sort_values(
        ["complete", "over_fastest"], ascending=[False, True], kind="stable"
    )


def means_of_times(timed: pd.DataFrame) -> pd.DataFrame:
    """Return those columns of `by_solution` that are made of times. timed: the rows that count."""
    fastest_ms = timed.ms / timed.over_fastest
    timed = timed.assign(
        over_fastest_low=timed.ms_low / fastest_ms,
        over_fastest_high=timed.ms_high / fastest_ms,
    )
    of_solution = timed.groupby("solution")
    means = of_solution[GEOMETRIC].agg(geometric_mean)
    means["mean_ms"] = of_solution.ms.mean()
    means["score"] = of_solution.speedup.mean()
    means["timed"] = of_solution.size()
    means["runs"] = of_solution.runs.min()
    return means


def tied_with_best(means: pd.DataFrame) -> pd.DataFrame:
    """Return those rows of `by_solution` whose range of over_fastest overlaps that of the fastest
    of these rows.
    """
    least = means.over_fastest.min()
    highest = means.over_fastest_high[means.over_fastest == least].max()
    return means[means.over_fastest_low <= highest]


def passes(rows: pd.DataFrame, shown: str) -> pd.DataFrame:
    """Return passed_, stale_ and matched_ of each tolerance, as in `by_solution`.

    A workload with rows of several clocks passed if all of them did, and is stale if all are.
    """
    rows = rows.assign(is_stale=rows.source == "stale")
    fresh = rows[~rows.is_stale]
    workload = ["solution", "tolerance", "uuid"]
    has_passed = fresh.groupby(workload).passed.all()
    is_stale = rows.groupby(workload).is_stale.all()

    tolerances = list(dict.fromkeys([*TOLERANCES, shown]))
    passed = count_workloads(has_passed, tolerances)
    stale = count_workloads(is_stale, tolerances)
    stale = stale.where(stale > 0)
    matched = fresh.groupby("solution")[MATCHED].min()
    columns = [passed.add_prefix("passed_"), stale.add_prefix("stale_"), matched]
    return pd.concat(columns, axis="columns")


def count_workloads(is_counted: pd.Series, tolerances: list[str]) -> pd.DataFrame:
    """Return how many workloads are counted: a row for each solution, a column for each tolerance.

    is_counted: has a bool for each solution, tolerance and uuid.
    """
    of_solution = is_counted.groupby(["solution", "tolerance"]).sum()
    return of_solution.unstack("tolerance").reindex(columns=tolerances)


def best_solution(means: pd.DataFrame, tolerance: str = SHOWN_TOLERANCE) -> str | None:
    """Return the solution to use at a tolerance, None where none passed it on every workload.

    Of the complete solutions that passed it everywhere and are tied with the fastest of these, it
    is the one with the least mean latency. means: as `by_solution` returns them.
    """
    has_passed = means[f"passed_{tolerance}"] == means.workloads
    tied = tied_with_best(means[means.complete & has_passed])
    return tied.mean_ms.idxmin() if len(tied) else None


def base_of(solution: str) -> str:
    """Return the solution of which `solution` is a variant with other constants, or `solution`
    where it is none.
    """
    if solution not in solution_names():
        return solution
    return read_manifest(solution).based_on or solution


def speedup_over_others(rows: pd.DataFrame, solution: str) -> pd.Series:
    """Return other solution -> how many times as fast `solution` is, the closest competitor first.

    These are geometric means over the workloads. Left out are variants of the same base, and
    solutions that were not timed on every workload.
    """
    ms = counted(rows).pivot(index="uuid", columns="solution", values="ms")
    ms = ms.dropna(axis="columns")

    base = base_of(solution)
    others = [name for name in ms if base_of(name) != base]
    ratios = ms[others].div(ms[solution], axis="index")
    return geometric_mean(ratios).sort_values()
