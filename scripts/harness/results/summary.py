"""What counts as level, and the means of a run group's solutions, over all workloads or those of a range of tokens."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd

from harness.results.trace_table import records

LEVEL = 1.03  # a latency up to 3% above the least is level with it: no smaller difference is called one


def is_level(latency: float | pd.Series, least: float | pd.Series) -> bool | pd.Series:
    """Whether a latency is level with the least one; of numbers, or row by row of two columns (False for NaN)."""
    return latency <= LEVEL * least


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
    the current source, timed or not; complete: whether all did; timed: how many count; failed: measured with the
    current source and not passed; stale: measured with an earlier source; level: on how many workloads it is the
    fastest or level with it. over_fastest: geometric mean, over the workloads that count, of its latency over that of
    the fastest. Of its speed-ups (the reference's time over the solution's): the mean, which is FIB's score,
    geometric_mean, median, least, greatest and variation (standard deviation over mean, None for fewer than two
    workloads). mean_ms: mean latency; over_bound: geometric mean of latency over bound, None unless all have one.
    Statistics are None where nothing counts.
    best: the solutions to use, which passed and were timed on all workloads: the one with the least over_fastest, and
    those level with it, best first; empty where there is none.
    """

    regime: Regime
    summaries: list[SimpleNamespace]
    best: list[str]

    def of(self, solution: str) -> SimpleNamespace:
        return next(s for s in self.summaries if s.solution == solution)


def geometric_mean(values: pd.Series) -> float:
    """NaN where a value is not known."""
    return np.exp(np.log(values).mean(skipna=False))


def variation(values: pd.Series) -> float:
    return values.std(ddof=0) / values.mean() if len(values) > 1 else np.nan


def with_level(cells: pd.DataFrame) -> pd.DataFrame:
    """Adds over_fastest, a counting cell's latency over the least of its workload, and level, whether it is level.

    cells: a run group's, as of `counting`. Of a cell that does not count, over_fastest is NaN and level False.
    """
    counting = cells.latency_ms.where(cells.counts)
    least = counting.groupby(cells.uuid).transform("min")
    return cells.assign(over_fastest=counting / least, level=is_level(counting, least))


def summary_table(cells: pd.DataFrame, workloads: dict[str, int]) -> pd.DataFrame:
    """Summaries by regime and solution; cells as of `with_level`, in each regime again, which the column regime names.

    workloads: the regimes' names -> how many there are. One table, as pandas takes milliseconds for the smallest one.
    """
    keys = ["regime", "solution"]
    current = cells.assign(passed=cells.passed & ~cells.stale, failed=~cells.passed & ~cells.stale, timed=cells.counts)
    numbers = current.groupby(keys)[["passed", "failed", "stale", "timed", "level"]].sum()
    everyone = pd.MultiIndex.from_product([workloads, sorted(set(cells.solution))], names=keys)
    numbers = numbers.reindex(everyone, fill_value=0)
    figures = {
        "over_fastest": ("over_fastest", geometric_mean),
        "mean": ("speedup", "mean"),
        "median": ("speedup", "median"),
        "least": ("speedup", "min"),
        "greatest": ("speedup", "max"),
        "variation": ("speedup", variation),
        "mean_ms": ("latency_ms", "mean"),
        "over_bound": ("over_bound", geometric_mean),
    }
    statistics = cells[cells.counts].groupby(keys).agg(**figures)
    table = numbers.join(statistics).assign(workloads=everyone.get_level_values("regime").map(workloads))
    return table.assign(complete=table.passed == table.workloads)


def best_of(summaries: list[SimpleNamespace]) -> list[str]:
    able = sorted((s for s in summaries if s.timed == s.workloads), key=lambda s: s.over_fastest)
    return [s.solution for s in able if is_level(s.over_fastest, able[0].over_fastest)]


def summarise(cells: pd.DataFrame, seq_lens: list[int]) -> list[RegimeSummary]:
    """Of all workloads, then of each regime that has any; solutions best first, by passed, then over_fastest, of all.

    cells: a run group's, as of `with_level`; seq_lens: T of each workload, run or not.
    """
    regimes = {r: workloads for r in (ALL, *REGIMES) if (workloads := sum(map(r.holds, seq_lens)))}
    by_regime = pd.concat([cells[cells.seq_len.map(r.holds)].assign(regime=r.name) for r in regimes])
    table = summary_table(by_regime, {r.name: workloads for r, workloads in regimes.items()})
    order = table.loc[ALL.name].sort_values(["passed", "over_fastest"], ascending=[False, True], kind="stable").index
    made = [(r, records(table.loc[r.name].loc[order].reset_index())) for r in regimes]
    return [RegimeSummary(r, summaries, best_of(summaries)) for r, summaries in made]
