"""Means and spread of the speed-ups of a run group's solutions, over all workloads or those of a range of tokens."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.results.trace_table import records
from harness.results.workload_info import WorkloadInfo


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
class Summary:
    """Speed-ups are the reference's time over the solution's; statistics are None where nothing counts.

    workloads: how many there are to pass; passed: how many of them passed with the current source, timed or not;
    failed: measured with the current source and not passed; stale: measured with an earlier source.
    variation: the population's standard deviation over the arithmetic mean, None for fewer than two workloads.
    wins: workloads that it is fastest on.
    mean_ms: arithmetic mean latency; over_bound: geometric mean of latency over bound, None unless all have one.
    """

    solution: str
    workloads: int
    passed: int
    failed: int
    stale: int
    wins: int
    mean: float | None
    geometric_mean: float | None
    median: float | None
    least: float | None
    greatest: float | None
    variation: float | None
    mean_ms: float | None
    over_bound: float | None

    @property
    def complete(self) -> bool:
        """Whether it may be recommended: everything passed, with the source as it is now."""
        return self.workloads > 0 and self.passed == self.workloads


@dataclass(frozen=True)
class RegimeSummary:
    """Summaries of the workloads of one regime, one for each solution.

    best and runner_up: the greatest mean speed-ups of those that passed everything; best_geometric: the greatest
    geometric mean of them; None where there is none.
    """

    regime: Regime
    summaries: list[Summary]
    best: str | None
    runner_up: str | None
    best_geometric: str | None

    def of(self, solution: str) -> Summary:
        return next(s for s in self.summaries if s.solution == solution)


def summary_table(cells: pd.DataFrame, regimes: list[Regime], infos: list[WorkloadInfo]) -> pd.DataFrame:
    """Summary's figures by regime's name and solution; NaN where nothing counts."""
    inside = pd.concat([cells[cells.seq_len.map(regime.holds)].assign(regime=regime.name) for regime in regimes])
    stale, passed = inside.source == "stale", inside.status == "PASSED"
    key = ["regime", "solution"]
    numbers = inside.assign(passed=passed & ~stale, failed=~passed & ~stale, stale=stale).groupby(key)
    counted = inside[inside.counts]
    figures = counted.assign(log=np.log(counted.speedup), log_over=np.log(counted.over_bound)).groupby(key)
    speedups = figures.speedup
    statistics = {
        "mean": speedups.mean(),
        "geometric_mean": np.exp(figures.log.mean()),
        "median": speedups.median(),
        "least": speedups.min(),
        "greatest": speedups.max(),
        "variation": (speedups.std(ddof=0) / speedups.mean()).where(figures.size() > 1),
        "mean_ms": figures.latency_ms.mean(),
        "over_bound": np.exp(figures.log_over.mean()).where(figures.over_bound.count() == figures.size()),
    }
    every = pd.MultiIndex.from_product([[r.name for r in regimes], cells.solution.unique()], names=key)
    workloads = {r.name: sum(r.holds(info.seq_len) for info in infos) for r in regimes}
    return (
        numbers[["passed", "failed", "stale", "wins"]]
        .sum()
        .reindex(every, fill_value=0)
        .join(pd.DataFrame(statistics))
        .assign(workloads=every.get_level_values("regime").map(workloads))
    )


def summarise(cells: pd.DataFrame, infos: list[WorkloadInfo]) -> list[RegimeSummary]:
    """Of all workloads, then of each regime that has any; solutions best first, by passed, then mean speed-up, of all.

    cells: a run group's, with the columns of Cell, counts and wins. Those that do not count are only numbered.
    """
    regimes = [ALL, *(regime for regime in REGIMES if any(regime.holds(info.seq_len) for info in infos))]
    table = summary_table(cells, regimes, infos)
    totals = table.loc[ALL.name].sort_values(["passed", "mean", "solution"], ascending=[False, False, True])
    made = []
    for regime in regimes:
        summaries = records(table.loc[regime.name].loc[totals.index].reset_index(), Summary)
        able = [s for s in summaries if s.complete and s.mean is not None]
        first, second, *_ = [s.solution for s in sorted(able, key=lambda s: -s.mean)] + [None, None]
        geometric = max(able, key=lambda s: s.geometric_mean, default=None)
        made.append(RegimeSummary(regime, summaries, first, second, geometric and geometric.solution))
    return made
