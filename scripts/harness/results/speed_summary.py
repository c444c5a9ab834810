"""Means and spread of one solution's speed-ups over some workloads."""

import statistics
from dataclasses import dataclass


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


def summarise(solution: str, cells: list, num_workloads: int, wins: int) -> Summary:
    """Summary of a solution's Cells on num_workloads workloads. Stale cells are only counted."""
    fresh = [cell for cell in cells if not cell.stale]
    counted = [cell for cell in fresh if cell.counts]
    speedups = [cell.speedup for cell in counted]
    bounds = [cell.over_bound for cell in counted]
    mean = statistics.fmean(speedups) if speedups else None
    return Summary(
        solution=solution,
        workloads=num_workloads,
        passed=sum(cell.passed for cell in fresh),
        failed=sum(not cell.passed for cell in fresh),
        stale=len(cells) - len(fresh),
        wins=wins,
        mean=mean,
        geometric_mean=statistics.geometric_mean(speedups) if speedups else None,
        median=statistics.median(speedups) if speedups else None,
        least=min(speedups, default=None),
        greatest=max(speedups, default=None),
        variation=statistics.pstdev(speedups) / mean if len(speedups) > 1 else None,
        mean_ms=statistics.fmean(cell.latency_ms for cell in counted) if counted else None,
        over_bound=statistics.geometric_mean(bounds) if bounds and None not in bounds else None,
    )
