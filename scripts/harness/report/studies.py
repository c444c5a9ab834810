"""The generated blocks of the two side studies, docs/w16a16.md (bf16 MoE) and docs/mxfp8.md: traces and profiles."""

from definitions import moe_bf16, mxfp8_linear
from harness.core import paths
from harness.operators import roofline
from harness.profiling.record import Counters, ProfileRecord, WorkloadProfile, read_records
from harness.report import comparison as comparison_report
from harness.report import profiles
from harness.report.profiles import number
from harness.report.table import Table
from harness.results import comparison, staleness
from harness.results.comparison import Comparison, RunGroup, Section

OURS = ("gather_scatter_bf16", "align_fused_bf16")
LIBRARY = "torch_grouped_bf16"
TOLERANCE = "relaxed"
STALE = "\\* *stale*: the solution's source has changed since it was measured."
NOT_RECORDED = "Not recorded yet: run the `moebench profile` above on a GPU."


def bf16_traces() -> Comparison:
    """The recorded runs of the bf16 layer at TOLERANCE. Raises TraceSetError for traces that cannot be read."""
    return comparison.recorded(moe_bf16.definition_name("bf16"), TOLERANCE)


def bf16_records() -> list[ProfileRecord]:
    """Raises UserError for a file that is no record."""
    found = {record.solution: record for record in read_records(paths.PROFILES / "bf16")}
    return [found[name] for name in (*OURS, LIBRARY) if name in found]


def summary(section: Section, group: RunGroup) -> str:
    """Markdown: one row per workload, with each solution's time and what they are to each other and to the bound."""
    names = [name for name in (*OURS, LIBRARY) if name in group.solutions]
    first, second = OURS
    rows, notes = [], [f"{section.hardware}, {group.tolerance}; {section.versions_text}; {group.protocol}; "]
    notes[0] += f"{' to '.join(group.days)}."
    for row in group.rows:
        info, bound = row.workload, row.workload.bound_ms
        ms = {name: cell.latency_ms for name, cell in row.cells.items() if cell.latency_ms}
        stale = {name for name in names if name in row.cells and row.cells[name].stale}
        notes += [STALE] if stale else []
        best = min((ms[name] for name in OURS if name in ms), default=None)
        cells = [str(info.seq_len), f"{info.rows / 128:g}", str(info.active), number(bound, ".3f")]
        cells += [number(ms.get(name), ".3f", "*" if name in stale else "") for name in names]
        for a, b in ((ms.get(second), ms.get(first)), (ms.get(LIBRARY), best), (best, bound)):
            cells.append(f"{a / b:.2f}" if a and b else "-")
        memory_ms = info.bytes / roofline.BYTES_PER_SECOND * 1e3
        cells.append("-" if not bound else "memory" if memory_ms >= 0.999 * bound else "tensor cores")
        rows.append(cells)
    head = ["T", "rows per expert", "active", "bound ms", *(f"`{name}` ms" for name in names)]
    head += [f"`{first}` over `{second}`", "our best over torch", "our best / bound", "bound by"]
    return Table(head, [rows], words=0, notes=list(dict.fromkeys(notes))).markdown()


def bf16_summary() -> str:
    """Of docs/w16a16.md: every solution at every T, from the traces."""
    found = bf16_traces()
    parts = [summary(section, group) for section in found.sections for group in section.groups]
    return "\n\n".join(parts) or "Not measured yet: `moebench run --definition bf16` on a CUDA GPU."


def launches(profile: WorkloadProfile) -> list[tuple[str, str, Counters]]:
    """(stage, kernel, counters) of each launch under ncu."""
    return [
        (s.stage, kernel.name, launch) for s in profile.stages for kernel in s.kernels for launch in kernel.counters
    ]


def bf16_gemm1() -> str:
    """Of docs/w16a16.md: gemm1's launches under ncu in each solution at each T."""
    rows, notes, stale_notes = [], [], []
    for record in bf16_records():
        where, star = record.provenance, ""
        if staleness.of_record(where, record.solution) != "current":
            star, stale_notes = "*", [STALE]
        day = where.timestamp[:10]
        notes.append(f"{where.hardware}, ncu, each kernel alone with cold caches; {day}; `{where.command}`.")
        for profile in record.workloads:
            for kernel, launch in [(kernel, x) for stage, kernel, x in launches(profile) if stage.startswith("gemm1")]:
                cells = [
                    str(profile.T),
                    f"`{record.solution}`{star}",
                    f"`{kernel}`",
                    str(launch.grid),
                    str(launch.block),
                ]
                percents = (launch.compute_percent, launch.memory_percent, launch.dram_percent, launch.tensor_percent)
                rows.append([*cells, *map(number, (launch.us, *percents))])
    rows.sort(key=lambda cells: int(cells[0]))
    head = ["T", "solution", "kernel", "grid", "block", "time us", "compute %", "memory %", "DRAM %", "tensor cores %"]
    notes = list(dict.fromkeys(notes + stale_notes))
    return Table(head, [rows], words=3, notes=notes).markdown() if rows else NOT_RECORDED


def bf16_launches() -> str:
    """Of docs/w16a16.md: each launch of one call under ncu, their sum, and the whole call as the harness timed it."""
    sections = bf16_traces().sections
    bounds = {info.uuid: info.bound_ms for section in sections for info in section.workloads}
    cells = [(section.hardware, cell) for section in sections for group in section.groups for cell in group.cells]
    timed = {(hardware, cell.solution, cell.uuid): cell.latency_ms for hardware, cell in cells}
    rows = []
    for record, profile in [(r, p) for r in bf16_records() for p in r.workloads]:
        if not (found := launches(profile)):
            continue
        us = sum(launch.us for _, _, launch in found)
        each = ", ".join(f"{stage} {launch.us:.1f}" for stage, _, launch in found)
        bound, ms = bounds.get(profile.uuid), timed.get((record.provenance.hardware, record.solution, profile.uuid))
        over_bound = number(us / bound / 1e3 if bound else None, ".2f")
        call = [f"{1e3 * ms:.1f}", f"{1e3 * ms - us:.1f}"] if ms else ["-", "-"]
        rows.append([str(profile.T), f"`{record.solution}`", each, f"{us:.1f}", over_bound, *call])
    head = ["T", "solution", "kernels, us", "sum us", "sum / bound", "call us", "outside kernels us"]
    return Table(head, [rows], words=3).markdown() if rows else NOT_RECORDED


def mxfp8() -> str:
    """Of docs/mxfp8.md: the profiles, and FIB's judgement of the whole layer from the traces.

    Raises TraceSetError for traces that cannot be read, UserError for a file that is no record.
    """
    records = read_records(paths.PROFILES / "mxfp8")
    parts = [profiles.records_block(records, "docs/data/profile/mxfp8")]
    found = comparison.recorded(mxfp8_linear.definition_name("mxfp8"))
    if found.sections:
        parts.append(comparison_report.markdown(found).strip())
    return "\n\n".join(parts)
