"""The generated blocks of the two side studies, docs/w16a16.md (bf16 MoE) and docs/mxfp8.md: traces and profiles."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from harness.core import paths
from harness.operators import roofline
from harness.operators.catalogue import definition_name
from harness.profiling.record import Counters, ProfileRecord, WorkloadProfile, read_records
from harness.report.table import Table, decimal
from harness.results import comparison, staleness
from harness.results.comparison import Comparison, RunGroup, Section

TOLERANCE = "relaxed"
STALE = "\\* *stale*: the solution's source has changed since it was measured."
NOT_RECORDED = "Not recorded yet: run the `moebench profile` above on a GPU."
NOT_MEASURED = "Not measured yet: run the `moebench run` above on a GPU."


@dataclass(frozen=True)
class Study:
    """folder: of docs/data/profile/, and the definition's key. routed: whether workloads differ in active experts."""

    folder: str
    ours: tuple[str, ...]
    library: str
    routed: bool

    def traces(self) -> Comparison:
        """The runs at TOLERANCE. Raises UserError for traces that cannot be read."""
        return comparison.recorded([definition_name(self.folder)], TOLERANCE)

    def records(self) -> list[ProfileRecord]:
        """Raises UserError for a file that is no record."""
        found = {record.solution: record for record in read_records(paths.PROFILES / self.folder)}
        return [found[name] for name in (*self.ours, self.library) if name in found]


BF16 = Study("bf16", ("gather_scatter_bf16", "align_fused_bf16"), "torch_grouped_bf16", True)
MXFP8 = Study("mxfp8", ("triton_mxfp8",), "torch_mxfp8_emulated", False)


def summary_table(study: Study, section: Section, group: RunGroup) -> str:
    """Markdown: one row per workload, with each solution's time, the library's over ours, and ours over the bound."""
    names = [name for name in (*study.ours, study.library) if name in group.solutions]
    passed = ", ".join(f"{s.solution} {s.passed} of {s.workloads}" for s in map(group.total.of, names))
    how = f"{section.versions_text}; {group.protocol}; {group.when}"
    rows, notes = [], [f"Passed: {passed}. {section.hardware}, {group.tolerance}; {how}."]
    for row in group.rows:
        info, bound = row.workload, row.workload.bound_ms
        ms = {name: cell.latency_ms for name, cell in row.cells.items() if cell.latency_ms}
        stale = {name for name in names if name in row.cells and row.cells[name].stale}
        notes += [STALE] if stale else []
        best = min((ms[name] for name in study.ours if name in ms), default=None)
        cells = [info.seq_len, *([info.active] if study.routed else []), decimal(bound, 3)]
        cells += [decimal(ms.get(name), 3, "*" if name in stale else "") for name in names]
        for a, b in ((ms.get(study.library), best), (best, bound)):
            cells.append(decimal(a / b if a and b else None, 2))
        memory_ms = info.bytes / roofline.BYTES_PER_SECOND * 1e3
        cells.append("-" if not bound else "memory" if memory_ms >= 0.999 * bound else "tensor cores")
        rows.append(cells)
    head = ["T", *(["active experts"] if study.routed else []), "bound ms", *(f"`{name}` ms" for name in names)]
    head += ["torch / ours", "ours / bound", "bound by"]
    return Table(head, [rows], words=0, notes=list(dict.fromkeys(notes))).markdown()


def summary(study: Study) -> str:
    """Every solution at every T, from the traces."""
    return "\n\n".join(summary_table(study, *run) for run in study.traces().runs) or NOT_MEASURED


def launches(profile: WorkloadProfile) -> list[tuple[str, str, Counters]]:
    """(stage, kernel, counters) of each launch under ncu."""
    kernels = [(stage.stage, kernel) for stage in profile.stages for kernel in stage.kernels]
    return [(stage, kernel.name, launch) for stage, kernel in kernels for launch in kernel.counters]


def starred(record: ProfileRecord) -> str:
    """The solution's name as code, with a star where the record is of an earlier source."""
    current = staleness.of_record(record.provenance, record.solution) == "current"
    return f"`{record.solution}`{'' if current else '*'}"


def notes_of(records: list[ProfileRecord]) -> list[str]:
    """How the records were made, each way once, and what a star means where there is one."""
    made = [record.provenance for record in records]
    notes = [f"{by.hardware}, {by.protocol}; {by.timestamp[:10]}; `{by.command}`." for by in made]
    return list(dict.fromkeys([*notes, *(STALE for record in records if starred(record).endswith("*"))]))


def profiled(study: Study, head: list[str], rows_of: Callable[[ProfileRecord, WorkloadProfile], list[list]]) -> str:
    """By T, the rows of every profile."""
    records = study.records()
    pairs = [(record, profile) for record in records for profile in record.workloads]
    rows = [[profile.T, starred(record), *row] for record, profile in pairs for row in rows_of(record, profile)]
    table = Table(["T", "solution", *head], [sorted(rows, key=itemgetter(0))], words=3, notes=notes_of(records))
    return table.markdown() if rows else NOT_RECORDED


def gemm1(study: Study) -> str:
    """gemm1's launches under ncu in each solution at each T."""

    def rows(_, profile: WorkloadProfile) -> list[list[str]]:
        found = [(kernel, x) for stage, kernel, x in launches(profile) if stage.startswith("gemm1")]
        figures = [(kernel, (x.us, x.dram_percent, x.tensor_percent)) for kernel, x in found]
        return [[f"`{kernel}`", *(decimal(figure, 1) for figure in of)] for kernel, of in figures]

    return profiled(study, ["kernel", "time us", "DRAM %", "tensor cores %"], rows)


def calls(study: Study) -> str:
    """One call by stage (by launch, where ncu counted them), their sum, and the whole call as the harness timed it."""
    found = study.traces()
    cells = [(section.hardware, cell) for section, group in found.runs for cell in group.cells]
    timed = {(hardware, cell.solution, cell.uuid): cell.latency_ms for hardware, cell in cells}
    bounds = {info.uuid: info.bound_ms for section in found.sections for info in section.workloads}

    def rows(record: ProfileRecord, profile: WorkloadProfile) -> list[list[str]]:
        parts = [(stage, launch.us) for stage, _, launch in launches(profile)]
        parts = parts or [(stage.stage, stage.total_us / profile.calls) for stage in profile.stages]
        us, bound = sum(us for _, us in parts), bounds.get(profile.uuid)
        wall_us = profile.wall_us or 1e3 * (timed.get((record.provenance.hardware, record.solution, profile.uuid)) or 0)
        each = ", ".join(f"{stage} {us:.1f}" for stage, us in parts)
        return [[each, decimal(us, 1), decimal(us / bound / 1e3 if bound else None, 2), decimal(wall_us or None, 1)]]

    return profiled(study, ["kernels, us", "sum us", "sum / bound", "call us"], rows)
