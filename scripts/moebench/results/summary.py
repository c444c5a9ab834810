"""Means over the workloads of one definition on one GPU, a row for each solution."""

import numpy as np
import pandas as pd

from moebench.judging.tolerances import TOLERANCES
from moebench.packing.manifest import read_manifest, solution_names
from moebench.results.measurements import MATCHED

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


def by_solution(rows: pd.DataFrame, verdicts: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return means by solution, the best one first.

    rows: of `measurements.load`, of one definition, GPU and clock. verdicts: the rows whose passes
    are counted, if not these: of every clock for instance. Columns, of the rows that count at the
    tolerance `shown_tolerance`:
    over_fastest, over_bound: geometric means;
    over_fastest_low, over_fastest_high: the same of the ends of the cells' ranges;
    mean_ms, score: arithmetic means of ms and of the speed-ups (FIB's score);
    timed: how many rows those are;
    complete: whether every workload passed and was timed;
    best: complete, and its range of over_fastest overlaps that of the least of those that are.

    For each tolerance, NaN where it was not run:
    passed_<tolerance>: workloads that passed, of rows that are not stale;
    stale_<tolerance>: workloads whose row is stale;
    matched_<tolerance>: the least share of elements inside it, over the workloads.

    workloads: how many the definition has.
    """
    shown = shown_tolerance(rows)
    verdicts = rows if verdicts is None else verdicts
    solutions = sorted(set(rows.solution))
    workloads = rows.workloads.max()

    counted = rows[(rows.tolerance == shown) & rows.counts]
    counted = counted.assign(
        over_fastest_low=counted.over_fastest * counted.ms_low / counted.ms,
        over_fastest_high=counted.over_fastest * counted.ms_high / counted.ms,
    )
    means = counted.groupby("solution").agg(
        over_fastest=("over_fastest", geometric_mean),
        over_fastest_low=("over_fastest_low", geometric_mean),
        over_fastest_high=("over_fastest_high", geometric_mean),
        over_bound=("over_bound", geometric_mean),
        mean_ms=("ms", "mean"),
        score=("speedup", "mean"),
        timed=("ms", "size"),
        runs=("runs", "min"),
    )
    means = means.reindex(solutions).join(passes(verdicts, shown))

    means["workloads"] = workloads
    means["complete"] = (means.timed == workloads) & (means[f"passed_{shown}"] == workloads)
    means["best"] = means.index.isin(tied_with_best(means[means.complete]).index)
    return means.sort_values(["complete", "over_fastest"], ascending=[False, True], kind="stable")


def tied_with_best(means: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `by_solution` whose range overlaps that of the fastest among them."""
    least = means.over_fastest.min()
    highest = means.over_fastest_high[means.over_fastest == least].max()
    return means[means.over_fastest_low <= highest]


def passes(rows: pd.DataFrame, shown: str) -> pd.DataFrame:
    """Return passed_, stale_ and matched_ of each tolerance, as in `by_solution`.

    A workload with rows of several clocks passed if all of them did, and is stale if all are.
    """
    of_workload = ["tolerance", "solution", "uuid"]
    fresh = rows[rows.source != "stale"]
    has_passed = fresh.groupby(of_workload).passed.all()
    is_stale = (rows.source == "stale").groupby([rows[column] for column in of_workload]).all()

    columns = {}
    for name in dict.fromkeys([*TOLERANCES, shown]):
        columns[f"passed_{name}"] = counts_by_solution(has_passed, name)
        stale = counts_by_solution(is_stale, name)
        columns[f"stale_{name}"] = stale[stale > 0]
    matched = fresh.groupby("solution")[MATCHED].min()
    return pd.concat([pd.DataFrame(columns), matched], axis=1)


def counts_by_solution(is_counted: pd.Series, tolerance: str) -> pd.Series:
    """Return by solution how many workloads are counted. is_counted: by tolerance first."""
    if tolerance not in is_counted.index.get_level_values("tolerance"):
        return pd.Series(dtype=float)
    return is_counted[tolerance].groupby("solution").sum()


def best_solution(rows: pd.DataFrame, tolerance: str = SHOWN) -> str | None:
    """Return the solution to use at a tolerance, None where none passed it on every workload.

    Candidates are complete and passed it. Among those tied with the fastest of them, the one with
    the least mean latency is returned.
    """
    means = by_solution(rows)
    able = means[means.complete & (means[f"passed_{tolerance}"] == means.workloads)]
    tied = tied_with_best(able)
    return tied.mean_ms.idxmin() if len(tied) else None


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
