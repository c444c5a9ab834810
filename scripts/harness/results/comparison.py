"""Side by side: the one model of what traces say, from which all tables, figures and pages are made.

A section is one definition on one machine with one set of versions; a run group in it is one tolerance and one
protocol. Nothing is averaged, ranked or set in relation across run groups. Where several traces are of one cell,
one of the current source comes before a stale one, and the newest of those counts.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from harness.core import paths
from harness.operators import roofline
from harness.operators.catalogue import GEOMETRIES, definition_name
from harness.results import staleness, trace_files
from harness.results.summary import RegimeSummary, summarise
from harness.results.trace_files import TraceSetError
from harness.results.trace_table import CONDITION, counting, records, trace_table
from harness.results.workload_info import WorkloadInfo, workload_infos

TOLERANCE_ORDER = ("default", "relaxed", "contest")


@dataclass(frozen=True)
class Cell:
    """A solution on a workload, as the trace says that counts.

    source: "current", "stale" or "unknown", see staleness. Times and speedup are None unless it passed and was timed.
    matched: the share of elements inside its tolerance. recorded_in: "file:line" of the trace. superseded: how many
    other traces of the same cell do not count.
    """

    solution: str
    uuid: str
    seq_len: int
    status: str
    source: staleness.State
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
        return self.status == "PASSED"

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

    def ms(self, solution: str) -> float | None:
        """Latency of a cell that counts."""
        cell = self.cells.get(solution)
        return cell.latency_ms if cell and cell.counts else None

    @property
    def bound_speedup(self) -> float | None:
        """The most that anybody can reach: the median reference time of cells that count over the bound, or None."""
        references = [cell.reference_ms for cell in self.cells.values() if cell.counts and cell.reference_ms]
        least = self.workload.bound_ms
        return statistics.median(references) / least if references and least else None


@dataclass(frozen=True)
class Ratio:
    """How many times as fast a is as b.

    by_workload: uuid -> b's latency over a's, so above 1 a is faster, where both count; then their range and geometric
    mean, None where there is none.
    """

    a: str
    b: str
    by_workload: dict[str, float]
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
    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells.values()]

    @property
    def days(self) -> list[str]:
        """First and last day of the traces, or the only one, as yyyy-mm-dd."""
        days = sorted({cell.timestamp[:10] for cell in self.cells})
        return [days[0], days[-1]] if len(days) > 1 else days


@dataclass(frozen=True)
class Section:
    """One definition on one machine with one set of versions (library -> version).

    matched: uuid -> solution -> tolerance's name -> share of elements inside it, of traces that are not stale.
    """

    definition: str
    hardware: str
    versions: dict[str, str]
    versions_text: str
    workloads: list[WorkloadInfo]
    groups: list[RunGroup]
    matched: dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class Comparison:
    """warnings: what could not be read; notes: what a reader of the figures has to know."""

    sections: list[Section]
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def groups(self) -> list[RunGroup]:
        return [group for section in self.sections for group in section.groups]


def tolerance_order(text: str) -> tuple[int, str]:
    """Sorts tolerances, or their names, from strict to loose; unknown ones last."""
    name = text.partition(":")[0]
    return (TOLERANCE_ORDER.index(name) if name in TOLERANCE_ORDER else len(TOLERANCE_ORDER), text)


def ratio(rows: list[Row], a: str, b: str) -> Ratio:
    found = {row.workload.uuid: row.ms(b) / row.ms(a) for row in rows if row.ms(a) and row.ms(b)}
    middle = statistics.geometric_mean(found.values()) if found else None
    return Ratio(a, b, found, min(found.values(), default=None), max(found.values(), default=None), middle)


def make_group(tolerance: str, protocol: str, infos: list[WorkloadInfo], traces: pd.DataFrame) -> RunGroup:
    cells = counting(traces).sort_values("solution")
    bounds = {info.uuid: info.bound_ms for info in infos}
    cells["over_bound"] = cells.latency_ms / cells.uuid.map(bounds).astype(float)
    cells["counts"] = (cells.source != "stale") & cells.speedup.notna()
    fastest = cells[cells.counts].sort_values(["latency_ms", "solution"]).drop_duplicates("uuid")
    cells["wins"] = cells.index.isin(fastest.index)
    winners = dict(zip(fastest.uuid, fastest.solution, strict=True))
    by_workload = defaultdict(dict)
    for cell in records(cells, Cell):
        by_workload[cell.uuid][cell.solution] = cell
    rows = [Row(info, by_workload[info.uuid], winners.get(info.uuid)) for info in infos]
    total, *regimes = summarise(cells, infos)
    names = [summary.solution for summary in total.summaries]
    ratios = [ratio(rows, a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    return RunGroup(tolerance, protocol, names, rows, total, regimes, ratios)


def matched_ratios(traces: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """As in Section: at each tolerance that of the newest trace."""
    found = defaultdict(lambda: defaultdict(dict))
    fresh = traces[traces.source != "stale"].sort_values("timestamp", kind="stable")
    for uuid, solution, matched_at in zip(fresh.uuid, fresh.solution, fresh.matched_at, strict=True):
        found[uuid][solution] |= matched_at
    return found


def make_section(traces: pd.DataFrame, tolerance: str | None) -> Section:
    """tolerance: the name of the one to make run groups of, None for all; matched ratios are shown at every one."""
    first = traces.iloc[0]
    infos = workload_infos(first.definition, first.hardware, list(traces.found))
    shown = traces if tolerance is None else traces[traces.tolerance_name == tolerance]
    runs = sorted(shown.groupby(["tolerance", "protocol"]), key=lambda run: (tolerance_order(run[0][0]), run[0][1]))
    return Section(
        definition=first.definition,
        hardware=first.hardware,
        versions=dict(sorted(first.found.provenance.versions.items())),
        versions_text=first.versions,
        workloads=infos,
        groups=[make_group(*run, infos, part) for run, part in runs],
        matched=matched_ratios(traces),
    )


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises TraceSetError for a name that is not known."""
    for name in names:
        if name not in known:
            raise TraceSetError(f"unknown {what} {name!r}; the traces have: {', '.join(sorted(set(known)))}")


def recorded(definition: str, tolerance: str | None = None) -> Comparison:
    """This repository's traces of a definition (its name); empty where there are none.

    Raises TraceSetError for any that cannot be read: what is published leaves none of them out.
    """
    path = paths.trace_file(definition)
    found = build([path], tolerance=tolerance) if path.exists() else Comparison([])
    if found.warnings:
        raise TraceSetError(found.warnings[0])
    return found


def build(
    given: list[Path], definition: str | None = None, tolerance: str | None = None, solutions: Sequence[str] = ()
) -> Comparison:
    """Compare the traces below the given paths. Raises TraceSetError, also for a name that no trace has.

    definition: a key of GEOMETRIES or a name. tolerance: a name; only its run groups are built. solutions: names, all
    when empty.
    """
    recorded, warnings = trace_files.read(given)
    usable = [found for found in recorded if "seq_len" in found.trace.workload.axes]
    others = sorted({found.trace.definition for found in recorded} - {found.trace.definition for found in usable})
    notes = [f"{name}: left out: its workloads have no axis seq_len" for name in others]
    if not usable:
        raise TraceSetError(f"no traces that can be compared: {notes[0]}")
    traces = trace_table(usable)
    wanted = definition_name(definition) if definition in GEOMETRIES else definition
    for column, names in (("definition", [wanted] if wanted else []), ("solution", solutions)):
        check_known(column, names, traces[column].values)
        traces = traces[traces[column].isin(names)] if names else traces
    check_known("tolerance", [tolerance] if tolerance else [], traces.tolerance_name.values)
    sources = {root: staleness.sources(root) for root in {found.root for found in traces.found}}
    warnings += dict.fromkeys(line for known in sources.values() for line in known.warnings)
    states = [
        staleness.of_trace(found.provenance, found.trace.definition, found.trace.solution, sources[found.root])
        for found in traces.found
    ]
    traces = traces.assign(source=states)
    made = [make_section(part, tolerance) for _, part in traces.groupby(CONDITION[:3])]
    sections = [section for section in made if section.groups]
    return Comparison(sections, warnings, [*notes, *notes_on(sections)])


def with_ratio(comparison: Comparison, a: str, b: str) -> Comparison:
    """The comparison with this ratio alone, in the run groups that have both. Raises TraceSetError without one."""
    check_known("solution", (a, b), [name for group in comparison.groups for name in group.solutions])
    if not any({a, b} <= set(group.solutions) for group in comparison.groups):
        raise TraceSetError(f"{a} and {b} were never measured on one machine with the same versions and protocol")

    def changed(group: RunGroup) -> RunGroup:
        return replace(group, ratios=[ratio(group.rows, a, b)] if {a, b} <= set(group.solutions) else [])

    sections = [replace(section, groups=[changed(g) for g in section.groups]) for section in comparison.sections]
    return replace(comparison, sections=sections)


def notes_on(sections: list[Section]) -> list[str]:
    """What a reader has to know about cells that do not count and figures that are missing."""
    cells = [cell for section in sections for group in section.groups for cell in group.cells]
    notes = []
    if superseded := sum(cell.superseded for cell in cells):
        notes.append(f"not counted, as the same cell has a newer trace or one of the current source: {superseded}")
    if stale := sorted({cell.solution for cell in cells if cell.stale}):
        notes.append(f"stale: the source has changed since it was measured; not in means or wins: {', '.join(stale)}")
    if unknown := sorted({cell.solution for cell in cells if cell.source == "unknown"}):
        notes.append(f"?: not known whether the source has changed since: {', '.join(unknown)}")
    for section in sections:
        if section.hardware != roofline.MEASURED_ON:
            notes.append(f"no bound for {section.hardware}: its ceilings are known for {roofline.MEASURED_ON} only")
        elif lacking := [info.seq_len for info in section.workloads if info.rows is None]:
            listed = ", ".join(map(str, lacking))
            notes.append(f"no bound at T = {listed}: the routing's blobs are not in the data set")
    return list(dict.fromkeys(notes))
