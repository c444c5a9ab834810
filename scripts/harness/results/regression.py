"""Whether a change made a solution slower or wrong: two trace sets, before and after, cell by cell.

Only traces of the same definition, machine, versions, tolerance and protocol are set against each other. Where one side
has several traces of a cell, the newest source's count; the fastest of them is its time, as disturbances only ever add
time, and one failure makes it failing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flashinfer_bench import EvaluationStatus, Trace

from harness.core.provenance import of_trace

LIMIT = 0.05  # slower by more than this share of the time before is a regression


@dataclass(frozen=True, order=True)
class Condition:
    """What must be equal for two traces to be compared; versions: sorted (library, version) pairs."""

    definition: str
    hardware: str
    tolerance: str
    protocol: str
    versions: tuple[tuple[str, str], ...]

    @property
    def run(self) -> str:
        return f"{self.hardware}, {self.tolerance}"

    @property
    def details(self) -> str:
        versions = ", ".join(f"{name.replace('_', ' ')} {version}" for name, version in self.versions)
        return f"{self.definition}; {self.protocol}; {versions}"


@dataclass(frozen=True)
class Side:
    """A solution on a workload on one side. failure: its status unless it passed; ms: None where it was not timed."""

    failure: str | None
    ms: float | None


@dataclass(frozen=True)
class Change:
    """A cell that both sides have. mark: "failing", "slower" or ""; change: after / before - 1, None without times."""

    solution: str
    seq_len: int
    uuid: str
    before: Side
    after: Side

    @property
    def change(self) -> float | None:
        return self.after.ms / self.before.ms - 1 if self.before.ms and self.after.ms else None

    @property
    def mark(self) -> str:
        if self.after.failure and not self.before.failure:
            return "failing"
        return "slower" if self.change is not None and self.change > LIMIT else ""


@dataclass(frozen=True)
class Verdict:
    """changes: condition -> its common cells; lost and new: condition -> solution -> token counts of only one side;
    apart: (side, condition, number of traces) of conditions that the other side lacks."""

    changes: dict[Condition, list[Change]]
    lost: dict[Condition, dict[str, list[int]]]
    new: dict[Condition, dict[str, list[int]]]
    apart: list[tuple[str, Condition, int]]

    @property
    def compared(self) -> list[Change]:
        return [change for changes in self.changes.values() for change in changes]

    @property
    def marked(self) -> list[Change]:
        return [change for change in self.compared if change.mark]


def condition_of(trace: Trace) -> Condition:
    by = of_trace(trace)
    versions = tuple(sorted(by.versions.items()))
    return Condition(
        trace.definition, by.hardware, by.tolerance or "unknown tolerance", by.protocol or "unknown protocol", versions
    )


def _side(traces: list[Trace]) -> Side:
    newest = max(traces, key=lambda t: t.evaluation.timestamp).evaluation.environment.libs.get("solution_sha1")
    evaluations = [t.evaluation for t in traces if t.evaluation.environment.libs.get("solution_sha1") == newest]
    failures = [e.status.value for e in evaluations if e.status != EvaluationStatus.PASSED]
    times = [e.performance.latency_ms for e in evaluations if e.performance and e.performance.latency_ms > 0]
    return Side(failures[0] if failures else None, None if failures else min(times, default=None))


def _cells(traces: Iterable[Trace]) -> dict[Condition, dict[tuple[str, int, str], list[Trace]]]:
    """Condition -> (solution, token count, workload) -> its traces."""
    found = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        cell = trace.solution, trace.workload.axes.get("seq_len", 0), trace.workload.uuid
        found[condition_of(trace)][cell].append(trace)
    return found


def _lengths(cells: Iterable[tuple[str, int, str]]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for solution, seq_len, _ in sorted(cells):
        found[solution].append(seq_len)
    return dict(found)


def compare(before: Iterable[Trace], after: Iterable[Trace]) -> Verdict:
    """Set the traces of two sets against each other; what cannot be compared is listed, never guessed."""
    old, new = _cells(before), _cells(after)
    common = sorted(old.keys() & new.keys())
    apart = [("before", condition, old[condition]) for condition in sorted(old.keys() - new.keys())]
    apart += [("after", condition, new[condition]) for condition in sorted(new.keys() - old.keys())]
    return Verdict(
        changes={
            condition: [
                Change(*cell, _side(old[condition][cell]), _side(new[condition][cell]))
                for cell in sorted(old[condition].keys() & new[condition].keys())
            ]
            for condition in common
        },
        lost={c: _lengths(old[c].keys() - new[c].keys()) for c in common},
        new={c: _lengths(new[c].keys() - old[c].keys()) for c in common},
        apart=[(side, condition, sum(map(len, cells.values()))) for side, condition, cells in apart],
    )


def _text(side: Side) -> str:
    return side.failure or (f"{side.ms:.4f}" if side.ms else "passed")


def _table(changes: list[Change]) -> list[str]:
    lines = ["| solution | T | workload | before, ms | after, ms | change | |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: | --- |")
    for c in changes:
        change = "" if c.change is None else f"{c.change:+.1%}"
        mark = f"**{c.mark}**" if c.mark else ""
        cells = [c.solution, c.seq_len, c.uuid[:8], _text(c.before), _text(c.after), change, mark]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def markdown(verdict: Verdict) -> str:
    """The verdict for a pull request's comment: marked cells first, all of them folded away, what was not compared."""
    counts = {mark: sum(change.mark == mark for change in verdict.marked) for mark in ("slower", "failing")}
    summary = f"{counts['slower']} slower by more than {LIMIT:.0%}, {counts['failing']} newly failing"
    lines = ["## Benchmark against main", "", f"**{summary}**, of {len(verdict.compared)} compared."]
    for condition, changes in verdict.changes.items():
        lines += ["", f"### {condition.run}", "", condition.details, ""]
        if marked := [change for change in changes if change.mark]:
            lines += [*_table(marked), ""]
        if changes:
            lines += ["<details><summary>Every solution and workload</summary>", "", *_table(changes), "", "</details>"]
        for side, cells in (("before", verdict.lost[condition]), ("after", verdict.new[condition])):
            for solution, lengths in cells.items():
                lines += ["", f"Only {side}: {solution} at T = {', '.join(map(str, lengths))}"]
    if verdict.apart:
        lines += ["", "### Not compared", "", "Run under conditions that the other side has no trace of:", ""]
        lines += [
            f"- only {side}, {number} traces: {condition.run}; {condition.details}"
            for side, condition, number in verdict.apart
        ]
    return "\n".join(lines) + "\n"
