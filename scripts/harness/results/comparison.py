"""Side by side: the one model of what traces say, from which all tables, pictures and pages are made.

A section is one definition on one machine with one set of versions; a run group in it is one tolerance and one
protocol. Nothing is averaged, ranked or set in relation across run groups. Where several traces are of one cell,
one of the current source comes before a stale one, and the newest of those counts.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flashinfer_bench import EvaluationStatus, Trace, Workload
from flashinfer_bench.data import load_jsonl_file

from harness.core import paths
from harness.evaluation.tolerances import TOLERANCES
from harness.operators import roofline
from harness.operators.catalogue import GEOMETRIES, definition_name
from harness.operators.workloads import recorded_bound
from harness.results import trace_sets
from harness.results.speed_summary import Summary, summarise
from harness.results.trace_sets import Recorded, TraceSetError

NOT_VERSIONS = ("solution_sha1", "tolerance", "protocol", "command", "packages")
TOLERANCE_ORDER = ("default", "relaxed", "contest")


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
class WorkloadInfo:
    """A workload; rows, active, bytes and flops are None where its routing is not known.

    bound_ms: the least time it can take, None also on a machine other than the one whose ceilings were measured.
    """

    uuid: str
    seq_len: int
    rows: int | None
    active: int | None
    bytes: int | None
    flops: int | None
    bound_ms: float | None


@dataclass(frozen=True)
class Cell:
    """A solution on a workload, as the trace says that counts.

    source: "current", "stale" (the source has changed, or is gone, since) or "unknown" (the trace names no source,
    or there is none to compare with). Times and speedup are None unless it passed and was timed. superseded: how
    many other traces of the same cell do not count. recorded_in: "file:line" of the trace.
    """

    solution: str
    uuid: str
    seq_len: int
    status: str
    source: str
    latency_ms: float | None
    reference_ms: float | None
    speedup: float | None
    over_bound: float | None
    matched: float | None
    max_absolute_error: float | None
    max_relative_error: float | None
    solution_sha1: str | None
    timestamp: str
    command: str | None
    packages: str | None
    log: str
    recorded_in: str
    superseded: int

    @property
    def stale(self) -> bool:
        return self.source == "stale"

    @property
    def passed(self) -> bool:
        return self.status == EvaluationStatus.PASSED.value

    @property
    def counts(self) -> bool:
        """Whether it enters means and can win."""
        return not self.stale and self.speedup is not None


@dataclass(frozen=True)
class Row:
    """A workload's cells by solution, without those never run; winner: the fastest that counts, if any."""

    workload: WorkloadInfo
    cells: dict[str, Cell]
    winner: str | None

    @property
    def bound_speedup(self) -> float | None:
        """The most that anybody can reach: the median reference time of cells that count over the bound, or None."""
        references = [cell.reference_ms for cell in self.cells.values() if cell.counts and cell.reference_ms]
        least = self.workload.bound_ms
        return statistics.median(references) / least if references and least else None


@dataclass(frozen=True)
class RegimeSummary:
    """Summaries of the workloads of one regime, a solution each.

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


@dataclass(frozen=True)
class RatioRow:
    """ratio: b's latency over a's, so above 1 a is faster; None unless both count."""

    uuid: str
    seq_len: int
    a_ms: float | None
    b_ms: float | None
    ratio: float | None


@dataclass(frozen=True)
class Ratio:
    """How many times as fast a is as b: by workload, the range, and the geometric mean; None where none counts."""

    a: str
    b: str
    rows: list[RatioRow]
    least: float | None
    greatest: float | None
    geometric_mean: float | None


@dataclass(frozen=True)
class RunGroup:
    """What may be averaged: one tolerance and one protocol. solutions: best first, by passed, then mean speed-up."""

    tolerance: str
    protocol: str
    solutions: list[str]
    rows: list[Row]
    total: RegimeSummary
    regimes: list[RegimeSummary]
    ratios: list[Ratio]

    @property
    def tolerance_name(self) -> str:
        return self.tolerance.partition(":")[0]

    @property
    def days(self) -> list[str]:
        """First and last day of the traces, or the only one, as yyyy-mm-dd."""
        days = sorted({cell.timestamp[:10] for row in self.rows for cell in row.cells.values()})
        return [days[0], days[-1]] if len(days) > 1 else days


@dataclass(frozen=True)
class MatchedRow:
    """Share of elements inside each tolerance: solution -> tolerance's name -> ratio, of traces that are not stale."""

    uuid: str
    seq_len: int
    matched: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Section:
    """One definition on one machine with one set of versions (library -> version)."""

    definition: str
    hardware: str
    versions: dict[str, str]
    workloads: list[WorkloadInfo]
    groups: list[RunGroup]
    matched: list[MatchedRow]


@dataclass(frozen=True)
class Comparison:
    """warnings: what could not be read; notes: what a reader of the figures has to know."""

    sections: list[Section]
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tolerance_of(trace: Trace) -> str:
    return trace.evaluation.environment.libs.get("tolerance", "unknown tolerance")


def protocol_of(trace: Trace) -> str:
    return trace.evaluation.environment.libs.get("protocol", "unknown protocol")


def versions_of(trace: Trace) -> tuple[tuple[str, str], ...]:
    libs = trace.evaluation.environment.libs
    return tuple(sorted((key, value) for key, value in libs.items() if key not in NOT_VERSIONS))


def tolerance_order(text: str) -> tuple[int, str]:
    """Sorts tolerances, or their names, from strict to loose; unknown ones last."""
    name = text.partition(":")[0]
    return (TOLERANCE_ORDER.index(name) if name in TOLERANCE_ORDER else len(TOLERANCE_ORDER), text)


def _number(value: object) -> float | None:
    """A finite number or None; FIB writes infinities and NaN as strings."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def source_of(found: Recorded, hashes: dict[Path, dict[tuple[str, str], str]]) -> str:
    """Cell.source of a trace, given each data set's hashes of (definition, solution)."""
    trace = found.trace
    sha1 = trace.evaluation.environment.libs.get("solution_sha1")
    there = hashes[found.root or paths.ROOT]
    now = there.get((trace.definition, trace.solution))
    # A data set without sources, and a file outside any data set, cannot tell that a solution is gone.
    if sha1 is None or (now is None and (found.root is None or not there)):
        return "unknown"
    return "current" if sha1 == now else "stale"


def matched_of(trace: Trace) -> dict[str, float]:
    """Tolerance's name -> matched ratio: its own tolerance's, or each one's where the run computed all."""
    extra = (trace.evaluation.correctness.extra or {}) if trace.evaluation.correctness else {}
    found = {name: extra.get(f"matched_ratio_{name}") for name in TOLERANCES}
    found[tolerance_of(trace).partition(":")[0]] = extra.get("matched_ratio")
    return {name: ratio for name, value in found.items() if (ratio := _number(value)) is not None}


def counted(traces: list[tuple[Recorded, str]]) -> tuple[Recorded, str]:
    """The one of several (trace, source) of one cell that counts."""
    return max(traces, key=lambda t: (t[1] != "stale", t[0].trace.evaluation.timestamp))


def make_cell(found: Recorded, source: str, bound_ms: float | None, superseded: int) -> Cell:
    trace = found.trace
    evaluation, libs = trace.evaluation, trace.evaluation.environment.libs
    correctness, performance = evaluation.correctness, evaluation.performance
    # On a CPU FIB's times are left at zero: such a trace tells what is right, not what is fast.
    timed = performance is not None and performance.latency_ms > 0 and performance.speedup_factor > 0
    latency = performance.latency_ms if timed else None
    return Cell(
        solution=trace.solution,
        uuid=trace.workload.uuid,
        seq_len=trace.workload.axes["seq_len"],
        status=evaluation.status.value,
        source=source,
        latency_ms=latency,
        reference_ms=performance.reference_latency_ms if timed else None,
        speedup=performance.speedup_factor if timed else None,
        over_bound=latency / bound_ms if timed and bound_ms else None,
        matched=matched_of(trace).get(tolerance_of(trace).partition(":")[0]),
        max_absolute_error=_number(correctness.max_absolute_error) if correctness else None,
        max_relative_error=_number(correctness.max_relative_error) if correctness else None,
        solution_sha1=libs.get("solution_sha1"),
        timestamp=evaluation.timestamp,
        command=libs.get("command"),
        packages=libs.get("packages"),
        log=evaluation.log,
        recorded_in=found.place,
        superseded=superseded,
    )


def make_row(info: WorkloadInfo, cells: dict[str, Cell]) -> Row:
    racing = [cell for cell in cells.values() if cell.counts]
    fastest = min(racing, key=lambda cell: (cell.latency_ms, cell.solution), default=None)
    return Row(info, dict(sorted(cells.items())), fastest.solution if fastest else None)


def summarise_regime(regime: Regime, rows: list[Row], solutions: list[str]) -> RegimeSummary:
    inside = [row for row in rows if regime.holds(row.workload.seq_len)]
    summaries = []
    for name in solutions:
        cells = [row.cells[name] for row in inside if name in row.cells]
        wins = sum(row.winner == name for row in inside)
        summaries.append(summarise(name, cells, len(inside), wins))
    able = [s for s in summaries if s.complete and s.mean is not None]
    first, second, *_ = [s.solution for s in sorted(able, key=lambda s: -s.mean)] + [None, None]
    geometric = max(able, key=lambda s: s.geometric_mean, default=None)
    return RegimeSummary(regime, summaries, first, second, geometric and geometric.solution)


def ratio(rows: list[Row], a: str, b: str) -> Ratio:
    found = []
    for row in rows:
        times = [row.cells[n].latency_ms if n in row.cells and row.cells[n].counts else None for n in (a, b)]
        found.append(
            RatioRow(row.workload.uuid, row.workload.seq_len, *times, None if None in times else times[1] / times[0])
        )
    ratios = [row.ratio for row in found if row.ratio is not None]
    middle = statistics.geometric_mean(ratios) if ratios else None
    return Ratio(a, b, found, min(ratios, default=None), max(ratios, default=None), middle)


def make_group(
    tolerance: str, protocol: str, infos: list[WorkloadInfo], judged: list[tuple[Recorded, str]]
) -> RunGroup:
    """A run group of (trace, source) pairs on the section's workloads."""
    by_cell = defaultdict(lambda: defaultdict(list))
    for found, source in judged:
        by_cell[found.trace.workload.uuid][found.trace.solution].append((found, source))
    rows = []
    for info in infos:
        cells = {}
        for name, several in by_cell[info.uuid].items():
            found, source = counted(several)
            cells[name] = make_cell(found, source, info.bound_ms, len(several) - 1)
        rows.append(make_row(info, cells))
    names = sorted({found.trace.solution for found, _ in judged})
    ranked = sorted(summarise_regime(ALL, rows, names).summaries, key=lambda s: (-s.passed, -(s.mean or 0), s.solution))
    names = [summary.solution for summary in ranked]
    return RunGroup(
        tolerance=tolerance,
        protocol=protocol,
        solutions=names,
        rows=rows,
        total=summarise_regime(ALL, rows, names),
        regimes=[summarise_regime(r, rows, names) for r in REGIMES if any(r.holds(i.seq_len) for i in infos)],
        ratios=[ratio(rows, a, b) for at, a in enumerate(names) for b in names[at + 1 :]],
    )


def make_matched(infos: list[WorkloadInfo], judged: list[tuple[Recorded, str]]) -> list[MatchedRow]:
    newest_last = sorted((f for f, source in judged if source != "stale"), key=lambda f: f.trace.evaluation.timestamp)
    found = defaultdict(lambda: defaultdict(dict))
    for recorded in newest_last:
        trace = recorded.trace
        found[trace.workload.uuid][trace.solution] |= matched_of(trace)
    return [MatchedRow(i.uuid, i.seq_len, {name: dict(m) for name, m in sorted(found[i.uuid].items())}) for i in infos]


def recorded_workloads(definition: str, root: Path) -> list[Workload]:
    """A data set's workloads of a definition; [] where it keeps none or they cannot be read."""
    files = sorted((root / "workloads").rglob(f"{definition}.jsonl"))
    try:
        return [trace.workload for file in files for trace in load_jsonl_file(Trace, file)]
    except ValueError:
        return []  # those in the traces are enough for a comparison


def make_infos(definition: str, hardware: str, recorded: list[Recorded]) -> list[WorkloadInfo]:
    """Every workload of the definition, run or not, by T; with its bound where its routing is known."""
    known: dict[str, tuple[Workload, Path | None]] = {}
    for root in sorted({found.root or paths.ROOT for found in recorded}):
        known |= {workload.uuid: (workload, root) for workload in recorded_workloads(definition, root)}
    known |= {found.trace.workload.uuid: (found.trace.workload, found.root) for found in recorded}
    infos = []
    for workload, root in known.values():
        least = recorded_bound(definition, workload, root)
        # Without a row the bound is next to nothing, and a ratio to it says nothing.
        comparable = least is not None and least.rows > 0 and hardware == roofline.MEASURED_ON
        infos.append(
            WorkloadInfo(
                uuid=workload.uuid,
                seq_len=workload.axes["seq_len"],
                rows=least and least.rows,
                active=least and least.active,
                bytes=least and least.bytes,
                flops=least and least.flops,
                bound_ms=least.ms if comparable else None,
            )
        )
    return sorted(infos, key=lambda info: (info.seq_len, info.uuid))


def make_section(
    definition: str, hardware: str, versions: tuple, judged: list[tuple[Recorded, str]], only: str | None
) -> Section:
    """A section of (trace, source) pairs; only: the name of the tolerance to make run groups of, None for all."""
    infos = make_infos(definition, hardware, [found for found, _ in judged])
    runs = defaultdict(list)
    for found, source in judged:
        if only in (None, tolerance_of(found.trace).partition(":")[0]):
            runs[tolerance_of(found.trace), protocol_of(found.trace)].append((found, source))
    ordered = sorted(runs.items(), key=lambda item: (tolerance_order(item[0][0]), item[0][1]))
    return Section(
        definition=definition,
        hardware=hardware,
        versions=dict(versions),
        workloads=infos,
        groups=[make_group(tolerance, protocol, infos, found) for (tolerance, protocol), found in ordered],
        matched=make_matched(infos, judged),
    )


def select(
    recorded: list[Recorded], definition: str | None, solutions: Sequence[str]
) -> tuple[list[Recorded], list[str]]:
    """The traces asked for, and notes on those that cannot be shown.

    definition: a key of GEOMETRIES or a name; solutions: names, all when empty. Raises TraceSetError for one that no
    trace has.
    """
    notes, shown = [], [found for found in recorded if "seq_len" in found.trace.workload.axes]
    for name in sorted({found.trace.definition for found in recorded} - {found.trace.definition for found in shown}):
        notes.append(f"{name}: left out: its workloads have no axis seq_len")
    wanted = definition
    if definition in GEOMETRIES:
        wanted = definition_name(definition)
    filters = (
        ("definition", [wanted] if wanted else [], lambda trace: trace.definition),
        ("solution", solutions, lambda trace: trace.solution),
    )
    for what, names, of in filters:
        known = sorted({of(found.trace) for found in shown})
        for name in names:
            if name not in known:
                raise TraceSetError(f"unknown {what} {name!r}; the traces have: {', '.join(known) or 'none'}")
        shown = [found for found in shown if not names or of(found.trace) in names]
    if not shown:
        raise TraceSetError(f"no traces that can be compared: {notes[0]}")
    return shown, notes


def build(
    given: list[Path],
    definition: str | None = None,
    tolerance: str | None = None,
    solutions: Sequence[str] = (),
) -> Comparison:
    """Compare the traces below the given paths; arguments as in `select`. Raises TraceSetError.

    tolerance: a name; only its run groups are built, but matched ratios are told at every tolerance.
    """
    recorded, warnings = trace_sets.read(given)
    recorded, notes = select(recorded, definition, solutions)
    known = sorted({tolerance_of(found.trace).partition(":")[0] for found in recorded}, key=tolerance_order)
    if tolerance not in (None, *known):
        raise TraceSetError(f"unknown tolerance {tolerance!r}; the traces have: {', '.join(known)}")
    hashes = {}
    for root in sorted({found.root or paths.ROOT for found in recorded}):
        hashes[root], more = trace_sets.source_hashes(root)
        warnings += more
    by_section = defaultdict(list)
    for found in recorded:
        trace = found.trace
        key = trace.definition, trace.evaluation.environment.hardware, versions_of(trace)
        by_section[key].append((found, source_of(found, hashes)))
    made = [make_section(*key, judged, tolerance) for key, judged in sorted(by_section.items(), key=lambda i: i[0])]
    sections = [section for section in made if section.groups]
    return Comparison(sections, warnings, [*notes, *notes_on(sections)])


def with_ratio(comparison: Comparison, a: str, b: str) -> Comparison:
    """The comparison with this ratio alone, in the run groups that have both. Raises TraceSetError without one."""
    groups = [group for section in comparison.sections for group in section.groups]
    known = sorted({name for group in groups for name in group.solutions})
    for name in (a, b):
        if name not in known:
            raise TraceSetError(f"unknown solution {name!r}; the traces have: {', '.join(known)}")
    if not any({a, b} <= set(group.solutions) for group in groups):
        raise TraceSetError(f"{a} and {b} were never measured on one machine with the same versions and protocol")

    def changed(group: RunGroup) -> RunGroup:
        return replace(group, ratios=[ratio(group.rows, a, b)] if {a, b} <= set(group.solutions) else [])

    sections = [replace(section, groups=[changed(g) for g in section.groups]) for section in comparison.sections]
    return replace(comparison, sections=sections)


def notes_on(sections: list[Section]) -> list[str]:
    """What a reader has to know about cells that do not count and figures that are missing."""
    cells = [cell for s in sections for group in s.groups for row in group.rows for cell in row.cells.values()]
    notes = []
    if superseded := sum(cell.superseded for cell in cells):
        notes.append(f"not counted, as the same cell has a newer trace or one of the current source: {superseded}")
    if stale := sorted({cell.solution for cell in cells if cell.stale}):
        notes.append(f"stale: the source has changed since it was measured; not in means or wins: {', '.join(stale)}")
    if unknown := sorted({cell.solution for cell in cells if cell.source == "unknown"}):
        notes.append(f"?: whether the source has changed since cannot be told: {', '.join(unknown)}")
    for section in sections:
        if section.hardware != roofline.MEASURED_ON:
            notes.append(f"no bound for {section.hardware}: its ceilings are known for {roofline.MEASURED_ON} only")
        elif lacking := [info.seq_len for info in section.workloads if info.rows is None]:
            listed = ", ".join(map(str, lacking))
            notes.append(f"no bound at T = {listed}: the routing's blobs are not in the data set")
    return list(dict.fromkeys(notes))
