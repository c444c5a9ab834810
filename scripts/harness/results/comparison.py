"""Side by side: the one model of what traces say, from which all tables, figures and pages are made.

A section is one definition on one machine with one set of versions; a run group in it is one tolerance and one
protocol. Nothing is averaged, ranked or set in relation across run groups. Where several traces are of one cell,
one of the current source comes before a stale one, and the newest of those counts.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from harness.core import paths
from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators import roofline
from harness.operators.catalogue import KEYS, definition_name
from harness.results import staleness, trace_files
from harness.results.summary import RegimeSummary, summarise, with_level
from harness.results.trace_table import CONDITION, counting, records, trace_table
from harness.results.workload_info import WorkloadInfo, workload_infos

TOLERANCE_ORDER = ("default", "relaxed", "contest")
CELL = ["solution", "uuid", "seq_len", "status", "source", "latency_ms", "reference_ms", "speedup", "over_bound"]
CELL += ["matched", "max_absolute_error", "max_relative_error", "solution_sha1", "timestamp", "command", "packages"]
CELL += ["log", "recorded_in", "superseded", "stale", "passed", "counts", "over_fastest", "level"]


@dataclass(frozen=True)
class Row:
    """A workload's cells by solution, without those never run.

    A cell is the trace that counts, with the columns CELL of `trace_table`, `counting` and `with_level` as attributes.
    """

    workload: WorkloadInfo
    cells: dict[str, SimpleNamespace]

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
    """What may be averaged: one tolerance and one protocol. solutions: best first, by passed, then over_fastest."""

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
    def cells(self) -> list[SimpleNamespace]:
        return [cell for row in self.rows for cell in row.cells.values()]

    @property
    def when(self) -> str:
        """'2026-11-22 07:43 to 2026-11-22 15:25, 2 commands': a group may hold several runs, hours apart."""
        times = sorted({cell.timestamp[:16].replace("T", " ") for cell in self.cells})
        commands = {cell.command for cell in self.cells if cell.command}
        return " to ".join(sorted({times[0], times[-1]})) + (f", {len(commands)} commands" if len(commands) > 1 else "")


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
    """pair: the two solutions to compare, None for all; warnings: what could not be read; notes: what a reader of
    the figures has to know."""

    sections: list[Section]
    pair: tuple[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[tuple[Section, RunGroup]]:
        return [(section, group) for section in self.sections for group in section.groups]

    @property
    def groups(self) -> list[RunGroup]:
        return [group for _, group in self.runs]


def cell_table(found: Comparison) -> pd.DataFrame:
    """A row for each cell: its condition, its workload's bound_ms, the columns CELL, and tolerance_name."""
    rows = []
    for section, group, row in [(*run, row) for run in found.runs for row in run[1].rows]:
        where = (section.definition, section.hardware, section.versions_text, group.tolerance, group.protocol)
        more = {"bound_ms": row.workload.bound_ms, "tolerance_name": group.tolerance_name}
        rows += [dict(zip(CONDITION, where, strict=True)) | more | vars(cell) for cell in row.cells.values()]
    columns = dict.fromkeys([*CONDITION, "uuid", "seq_len", "bound_ms", *CELL, "tolerance_name"])
    return pd.DataFrame(rows, columns=list(columns)).astype({"counts": bool, "level": bool})


def tolerance_order(text: str) -> tuple[int, str]:
    """Sorts tolerances, or their names, from strict to loose; unknown ones last."""
    name = text.partition(":")[0]
    return (TOLERANCE_ORDER.index(name) if name in TOLERANCE_ORDER else len(TOLERANCE_ORDER), text)


def ratio(rows: list[Row], a: str, b: str) -> Ratio:
    found = {row.workload.uuid: row.ms(b) / row.ms(a) for row in rows if row.ms(a) and row.ms(b)}
    middle = statistics.geometric_mean(found.values()) if found else None
    return Ratio(a, b, found, min(found.values(), default=None), max(found.values(), default=None), middle)


def make_group(
    tolerance: str, protocol: str, infos: list[WorkloadInfo], traces: pd.DataFrame, pair: tuple[str, str] | None
) -> RunGroup:
    cells = with_level(counting(traces, {info.uuid: info.bound_ms for info in infos}))
    by_workload = defaultdict(dict)
    for cell in records(cells[CELL]):
        by_workload[cell.uuid][cell.solution] = cell
    rows = [Row(info, by_workload[info.uuid]) for info in infos]
    total, *regimes = summarise(cells, [info.seq_len for info in infos])
    names = [summary.solution for summary in total.summaries]
    pairs = [pair] if pair else combinations(names, 2)
    ratios = [ratio(rows, a, b) for a, b in pairs if {a, b} <= set(names)]
    return RunGroup(tolerance, protocol, names, rows, total, regimes, ratios)


def make_section(
    traces: pd.DataFrame, tolerance: str | None, pair: tuple[str, str] | None, clock: str | None
) -> Section:
    """tolerance, clock: what to make run groups of, None for all; matched ratios are of every one."""
    first = traces.iloc[0]
    infos = workload_infos(first.definition, first.hardware, list(traces.found))
    shown = traces if tolerance is None else traces[traces.tolerance_name == tolerance]
    shown = shown if clock is None else shown[shown.clock == clock]
    runs = sorted(shown.groupby(["tolerance", "protocol"]), key=lambda run: (tolerance_order(run[0][0]), run[0][1]))
    matched = defaultdict(lambda: defaultdict(dict))
    fresh = traces[traces.source != "stale"].sort_values("timestamp", kind="stable")
    for trace in fresh.itertuples():  # at each tolerance the newest stays
        matched[trace.uuid][trace.solution] |= trace.matched_at
    return Section(
        definition=first.definition,
        hardware=first.hardware,
        versions=dict(sorted(first.found.provenance.versions.items())),
        versions_text=first.versions,
        workloads=infos,
        groups=[make_group(*run, infos, part, pair) for run, part in runs],
        matched=matched,
    )


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises UserError for a name that is not known."""
    for name in names:
        if name not in known:
            raise UserError(unknown(what, name, sorted(set(known))))


def recorded(definitions: Collection[str], tolerance: str | None = None, clock: str = "events") -> Comparison:
    """This repository's traces of definitions (their names), of one clock; empty where there are none.

    Raises UserError for any that cannot be read: what is published leaves none of them out.
    """
    files = [path for name in definitions if (path := paths.trace_file(name, clock=clock)).exists()]
    found = build(files, tolerance=tolerance, clock=clock) if files else Comparison([])
    if found.warnings:
        raise UserError(found.warnings[0])
    return found


def build(
    given: list[Path],
    definition: str | None = None,
    tolerance: str | None = None,
    solutions: Sequence[str] = (),
    pair: tuple[str, str] | None = None,
    clock: str | None = None,
) -> Comparison:
    """Compare the traces below the given paths. Raises UserError, also for a name that no trace has.

    definition: a key of GEOMETRIES or a name. tolerance: a name; only its run groups are built. solutions: names, all
    when empty. pair: two solutions; only their ratio is made, in the run groups that have both. clock: one of CLOCKS;
    only its run groups are built.
    """
    recorded, warnings = trace_files.read(given)
    usable = [found for found in recorded if "seq_len" in found.trace.workload.axes]
    others = sorted({found.trace.definition for found in recorded} - {found.trace.definition for found in usable})
    notes = [f"{name}: left out: its workloads have no axis seq_len" for name in others]
    if not usable:
        raise UserError(f"no traces that can be compared: {notes[0]}")
    traces = trace_table(usable)
    wanted = definition_name(KEYS[definition]) if definition in KEYS else definition
    for column, names in (("definition", [wanted] if wanted else []), ("solution", solutions)):
        check_known(column, names, traces[column].values)
        traces = traces[traces[column].isin(names)] if names else traces
    check_known("tolerance", [tolerance] if tolerance else [], traces.tolerance_name.values)
    check_known("solution", pair or [], traces.solution.values)
    states, unreadable = staleness.of_traces(list(traces.found))
    traces = traces.assign(source=states)
    made = [make_section(part, tolerance, pair, clock) for _, part in traces.groupby(CONDITION[:3])]
    sections = [section for section in made if section.groups]
    # of a definition first the machine that all solutions were measured on
    sections.sort(key=lambda section: (section.definition, section.hardware != roofline.MEASURED_ON))
    if pair and not any(group.ratios for section in sections for group in section.groups):
        raise UserError(f"{' and '.join(pair)} were never measured on one machine with the same versions and protocol")
    return Comparison(sections, pair, [*warnings, *unreadable], [*notes, *notes_on(sections)])


def notes_on(sections: list[Section]) -> list[str]:
    """What a reader has to know about cells that do not count and figures that are missing."""
    cells = [cell for section in sections for group in section.groups for cell in group.cells]
    notes = []
    if superseded := sum(cell.superseded for cell in cells):
        notes.append(f"not counted, as the same cell has a newer trace or one of the current source: {superseded}")
    if stale := sorted({cell.solution for cell in cells if cell.stale}):
        notes.append(f"stale: the source has changed since it was measured; not in means: {', '.join(stale)}")
    if unknown := sorted({cell.solution for cell in cells if cell.source == "unknown"}):
        notes.append(f"?: not known whether the source has changed since: {', '.join(unknown)}")
    for section in sections:
        if section.hardware != roofline.MEASURED_ON:
            notes.append(f"no bound for {section.hardware}: its ceilings are known for {roofline.MEASURED_ON} only")
        elif lacking := [str(info.seq_len) for info in section.workloads if info.rows is None]:
            notes.append(f"no bound at T = {', '.join(lacking)}: the routing's blobs are not in the data set")
    return list(dict.fromkeys(notes))
