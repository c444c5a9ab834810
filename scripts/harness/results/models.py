"""What the traces say of each model's layer: the run group that is shown, the solution to use, and how far ahead."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from harness.core import paths
from harness.operators.roofline import MEASURED_ON
from harness.packing.manifest import read_manifest, solution_names
from harness.results.comparison import Comparison, Ratio, Row, RunGroup, Section, ratio
from harness.results.model_names import Layer, layers

SHOWN = "relaxed"
FEW_TOKENS = 256  # targets are stated up to here and from MANY_TOKENS on
MANY_TOKENS = 1024
TARGETS = f"T <= {FEW_TOKENS}: 1.15 x bound + 0.025 ms; T >= {MANY_TOKENS}: 1.7 x bound"


@dataclass(frozen=True)
class Verdict:
    """A layer on one machine.

    sections: all that were recorded there. section, group: the run group that is shown, None without traces. best:
    the summary of the solution to use, of those level the one with the least mean latency; None where none passed and
    was timed on every workload. peers: solutions of
    another source, timed on all workloads too, the nearest first: how many times as fast `best` is.
    """

    layer: Layer
    sections: tuple[Section, ...] = ()
    section: Section | None = None
    group: RunGroup | None = None
    best: SimpleNamespace | None = None
    peers: tuple[Ratio, ...] = ()

    @property
    def missing(self) -> str:
        """Why there is no solution to use; empty where there is one."""
        if self.best:
            return ""
        if self.group is None:
            return "not measured"
        summaries = self.group.total.summaries
        if failed := [s.solution for s in summaries if s.failed]:
            return f"failed: {', '.join(failed)}"
        most = max(summaries, key=lambda s: s.timed)
        return f"{most.timed} of {most.workloads} timed" if most.timed else "stale: earlier source"

    def at(self, tolerance: str) -> SimpleNamespace | None:
        """The summary of the solution to use at a tolerance; None where none passed and was timed on every workload."""
        if self.group and tolerance == self.group.tolerance_name:
            return self.best
        found = [best for s in self.sections for g in s.groups if g.tolerance_name == tolerance and (best := to_use(g))]
        return next(
            (of for of in found if self.best and of.solution == self.best.solution), found[0] if found else None
        )

    def least_matched(self, solution: str, tolerance: str) -> float | None:
        """The lowest matched ratio over the workloads; None where it is not known."""
        found = (of.get(solution, {}).get(tolerance) for s in self.sections for of in s.matched.values())
        return min((ratio for ratio in found if ratio is not None), default=None)

    def over(self, solution: str) -> float | None:
        """How many times as fast `best` is as one of its peers."""
        return next((peer.geometric_mean for peer in self.peers if peer.b == solution), None)


def source_of(solution: str) -> str:
    """The solution whose source this one is, with other constants: its base, or itself."""
    return (read_manifest(solution).based_on if solution in solution_names() else None) or solution


def to_use(group: RunGroup) -> SimpleNamespace | None:
    """The summary of the solution to use: of those level, the one with the least mean latency."""
    return min(map(group.total.of, group.total.best), key=lambda summary: summary.mean_ms, default=None)


def shown_group(sections: Iterable[Section]) -> tuple[Section, RunGroup] | None:
    """Of those with a cell that counts one at SHOWN, with the most such cells, the newest."""
    groups = [(section, group) for section in sections for group in section.groups]

    def weight(pair: tuple[Section, RunGroup]) -> tuple[bool, bool, int, str]:
        counting = sum(cell.counts for cell in pair[1].cells)
        newest = max(cell.timestamp for cell in pair[1].cells)
        return counting > 0, pair[1].tolerance_name == SHOWN, counting, newest

    return max(groups, key=weight, default=None)


def verdict(layer: Layer, found: Comparison, hardware: str = MEASURED_ON) -> Verdict:
    sections = tuple(s for s in found.sections if s.definition == layer.definition and s.hardware == hardware)
    if (shown := shown_group(sections)) is None:
        return Verdict(layer)
    section, group = shown
    if (best := to_use(group)) is None:
        return Verdict(layer, sections, section, group)
    others = [
        s.solution
        for s in group.total.summaries
        if s.timed == s.workloads and source_of(s.solution) != source_of(best.solution)
    ]
    ratios = (ratio(group.rows, best.solution, name) for name in others)
    return Verdict(layer, sections, section, group, best, tuple(sorted(ratios, key=lambda r: r.geometric_mean)))


def verdicts(found: Comparison) -> list[Verdict]:
    """Of every model's layer."""
    return [verdict(layer, found) for layer in layers()]


def trace_files(of: list[Layer]) -> list[Path]:
    """Of the layers that have traces in this repository."""
    return [path for layer in of if (path := paths.trace_file(layer.definition)).exists()]


def best_peer(row: Row, solution: str) -> tuple[str, float] | None:
    """The fastest solution of another source on a workload, and its latency over `solution`'s; None without both."""
    ours = row.ms(solution)
    times = {name: row.ms(name) for name in row.cells if source_of(name) != source_of(solution) and row.ms(name)}
    if not ours or not times:
        return None
    name = min(times, key=times.get)
    return name, times[name] / ours


def target_ms(seq_len: int, bound_ms: float) -> float | None:
    """The latency that a workload should not exceed; None between the two ranges that have one."""
    if seq_len <= FEW_TOKENS:
        return 1.15 * bound_ms + 0.025
    return 1.7 * bound_ms if seq_len >= MANY_TOKENS else None


def meets_target(row: Row, solution: str) -> bool | None:
    """Whether a workload's latency does not exceed its target; None without either."""
    ms, bound_ms = row.ms(solution), row.workload.bound_ms
    target = None if bound_ms is None else target_ms(row.workload.seq_len, bound_ms)
    return None if ms is None or target is None else ms <= target
