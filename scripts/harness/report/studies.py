"""The generated blocks of the two side studies, docs/w16a16.md (bf16 MoE) and docs/mxfp8.md: traces and profiles."""

from definitions import moe_bf16, mxfp8_linear
from harness.core import paths
from harness.profiling.record import ProfileRecord, read_records
from harness.report import comparison as comparison_report
from harness.report import profiles
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
    head = ["T", "rows per expert", "active", "bound ms", *(f"`{name}` ms" for name in names)]
    head += [f"`{first}` over `{second}`", "our best over torch", "our best / bound", "bound by"]
    rows, stale = [], False
    for row in group.rows:
        info = row.workload
        ms = {name: cell.latency_ms for name, cell in row.cells.items() if cell.latency_ms}
        best = min((ms[name] for name in OURS if name in ms), default=None)

        def ratio(a, b):
            return f"{a / b:.2f}" if a and b else "-"

        memory = info.bytes / comparison.roofline.BYTES_PER_SECOND * 1e3
        cells = [str(info.seq_len), f"{info.rows / 128:g}", str(info.active)]
        cells += [f"{info.bound_ms:.3f}" if info.bound_ms else "-"]
        for name in names:
            marked = name in row.cells and row.cells[name].stale
            stale |= marked
            cells.append(f"{ms[name]:.3f}{'*' if marked else ''}" if name in ms else "-")
        cells += [ratio(ms.get(second), ms.get(first)), ratio(ms.get(LIBRARY), best), ratio(best, info.bound_ms)]
        cells.append("-" if not info.bound_ms else "memory" if memory >= 0.999 * info.bound_ms else "tensor cores")
        rows.append(cells)
    note = (
        f"{section.hardware}, {group.tolerance}; {section.versions_text}; {group.protocol}; {' to '.join(group.days)}."
    )
    return Table(head, [rows], words=0, notes=[note, *([STALE] if stale else [])]).markdown()


def bf16_summary() -> str:
    """Of docs/w16a16.md: every solution at every T, from the traces."""
    found = bf16_traces()
    parts = [summary(section, group) for section in found.sections for group in section.groups]
    return "\n\n".join(parts) or "Not measured yet: `moebench run --definition bf16` on a CUDA GPU."


def bf16_gemm1() -> str:
    """Of docs/w16a16.md: gemm1's launches under ncu in each solution at each T."""
    rows, notes = [], []
    for record in bf16_records():
        stale = staleness.of_record(record.provenance, record.solution) != "current"
        for profile in record.workloads:
            gemm1 = [stage for stage in profile.stages if stage.stage.startswith("gemm1")]
            for kernel, launch in ((k, launch) for stage in gemm1 for k in stage.kernels for launch in k.counters):
                percents = (launch.compute_percent, launch.memory_percent, launch.dram_percent, launch.tensor_percent)
                cells = [str(profile.T), f"`{record.solution}`{'*' if stale else ''}", f"`{kernel.name}`"]
                cells += [str(launch.grid), str(launch.block), f"{launch.us:.1f}"]
                rows.append((profile.T, cells + ["-" if p is None else f"{p:.1f}" for p in percents]))
        where = record.provenance
        note = f"{where.hardware}, ncu, each kernel alone with cold caches; {where.timestamp[:10]}; `{where.command}`."
        notes += [line for line in (note, STALE if stale else note) if line not in notes]
    if not rows:
        return NOT_RECORDED
    head = ["T", "solution", "kernel", "grid", "block", "time us", "compute %", "memory %", "DRAM %", "tensor cores %"]
    in_order = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
    return Table(head, [in_order], words=3, notes=notes).markdown()


def bf16_launches() -> str:
    """Of docs/w16a16.md: each launch of one call under ncu, their sum, and the whole call as the harness timed it."""
    found = bf16_traces()
    bounds = {info.uuid: info.bound_ms for section in found.sections for info in section.workloads}
    timed = {
        (section.hardware, name, cell.uuid): cell.latency_ms
        for section in found.sections
        for group in section.groups
        for row in group.rows
        for name, cell in row.cells.items()
    }
    rows = []
    for record in bf16_records():
        for profile in record.workloads:
            launches = [(s.stage, launch.us) for s in profile.stages for k in s.kernels for launch in k.counters]
            if not launches:
                continue
            total = sum(us for _, us in launches)
            each = ", ".join(f"{stage} {us:.1f}" for stage, us in launches)
            bound, ms = bounds.get(profile.uuid), timed.get((record.provenance.hardware, record.solution, profile.uuid))
            cells = [str(profile.T), f"`{record.solution}`", each, f"{total:.1f}"]
            cells.append(f"{total / bound / 1e3:.2f}" if bound else "-")
            rows.append([*cells, *([f"{1e3 * ms:.1f}", f"{1e3 * ms - total:.1f}"] if ms else ["-", "-"])])
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
