"""Means and spread of the speed-ups of a run group's solutions, over all workloads or those of a range of tokens."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd

from harness.results.trace_table import records


@dataclass(frozen=True)
class Regime:
    """Workloads of low <= T <= high tokens; high is None for no upper limit."""

    name: str
    low: int
    high: int | None

    def holds(self, seq_len: int) -> bool:
        return self.low <= seq_len and (self.high is None or seq_len <= self.high)


ALL = Regime("all T", 0, None)
REGIMES = (
    Regime("T <= 16", 0, 16),
    Regime("17 to 100", 17, 100),
    Regime("101 to 1000", 101, 1000),
    Regime("over 1000", 1001, None),
)


@dataclass(frozen=True)
class RegimeSummary:
    """The workloads of one regime, a summary for each solution.

    A summary has the attributes solution; workloads: how many there are to pass; passed: how many of them passed with
    the current source, timed or not; complete: whether all did; failed: measured with the current source and not
    passed; stale: measured with an earlier source; wins: workloads that it is fastest on; the mean, geometric_mean,
    median, least and greatest of its speed-ups (the reference's time over the solution's), their variation (standard
    deviation over mean, None for fewer than two workloads); mean_ms, its mean latency; over_bound, geometric mean of
    latency over bound, None unless all have one. Statistics are None where nothing counts.
    best and runner_up: the greatest mean speed-ups of those that are complete; best_geometric: the greatest geometric
    mean of them; None where there is none.
    """

    regime: Regime
    summaries: list[SimpleNamespace]
    best: str | None
    runner_up: str | None
    best_geometric: str | None

    def of(self, solution: str) -> SimpleNamespace:
        return next(s for s in self.summaries if s.solution == solution)


def geometric_mean(values: pd.Series) -> float:
    """NaN where a value is not known."""
    return np.exp(np.log(values).mean(skipna=False))


def variation(values: pd.Series) -> float:
    return values.std(ddof=0) / values.mean() if len(values) > 1 else np.nan


def summary_table(cells: pd.DataFrame, names: list[str], workloads: int) -> pd.DataFrame:
    """Summaries of the solutions of these names, in this order; cells as of `counting`."""
    current = cells.assign(passed=cells.passed & ~cells.stale, failed=~cells.passed & ~cells.stale)
    numbers = current.groupby("solution")[["passed", "failed", "stale", "wins"]].sum().reindex(names, fill_value=0)
    figures = {
        "mean": ("speedup", "mean"),
        "geometric_mean": ("speedup", geometric_mean),
        "median": ("speedup", "median"),
        "least": ("speedup", "min"),
        "greatest": ("speedup", "max"),
        "variation": ("speedup", variation),
        "mean_ms": ("latency_ms", "mean"),
        "over_bound": ("over_bound", geometric_mean),
    }
    statistics = cells[cells.counts].groupby("solution").agg(**figures)
    return numbers.join(statistics).assign(workloads=workloads, complete=numbers.passed == workloads)


def summarise(cells: pd.DataFrame, seq_lens: list[int]) -> list[RegimeSummary]:
    """Of all workloads, then of each regime that has any; solutions best first, by passed, then mean speed-up, of all.

    cells: a run group's, as of `counting`; seq_lens: T of each workload, run or not.
    """
    made, names = [], sorted(set(cells.solution))
    for regime in (ALL, *REGIMES):
        if not (workloads := sum(map(regime.holds, seq_lens))):
            continue
        table = summary_table(cells[cells.seq_len.map(regime.holds)], names, workloads)
        if regime is ALL:
            table = table.sort_values(["passed", "mean"], ascending=False, kind="stable")
            names = list(table.index)
        summaries = records(table.reset_index())
        able = sorted((s for s in summaries if s.complete and s.mean is not None), key=lambda s: -s.mean)
        first, second, *_ = [*(s.solution for s in able), None, None]
        geometric = max(able, key=lambda s: s.geometric_mean, default=None)
        made.append(RegimeSummary(regime, summaries, first, second, geometric and geometric.solution))
    return made
