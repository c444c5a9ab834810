"""The generated parts of docs/w16a16.md: the summary of the bf16 layer's traces, and gemm1's launches under ncu."""

from pathlib import Path

from definitions.moe_bf16 import definition_name
from harness.core import paths
from harness.packing import pack
from harness.profiling.launch_counters import LaunchRecord, read_launches
from harness.report import marked_block
from harness.report.comparison_tables import versions
from harness.results import comparison
from harness.results.comparison import Comparison, RunGroup, Section
from harness.results.trace_sets import TraceSetError

PAGE = paths.DOCS / "w16a16.md"
LAUNCHES = paths.DATA / "launches_bf16.json"
SUMMARY = ("<!-- summary: written by scripts/update_w16a16.py -->", "<!-- end of summary -->")
COUNTERS = ("<!-- counters: written by scripts/update_w16a16.py -->", "<!-- end of counters -->")
STAGES = ("<!-- stages: written by scripts/update_w16a16.py -->", "<!-- end of stages -->")
OURS = ("gather_scatter_bf16", "align_fused_bf16")
LIBRARY = "torch_grouped_bf16"
TOLERANCE = "relaxed"
STALE = "*stale*: the solution's source has changed since it was measured."


def traces() -> Comparison:
    """The recorded runs of the bf16 layer at TOLERANCE. Raises TraceSetError for traces that cannot be read."""
    path = paths.trace_file(definition_name("bf16"))
    if not path.exists():
        return Comparison([])
    found = comparison.build([path], tolerance=TOLERANCE)
    if found.warnings:
        raise TraceSetError(found.warnings[0])
    return found


def summary(section: Section, group: RunGroup) -> str:
    """Markdown: a row a workload, with each solution's time and what they are to each other and to the bound."""
    names = [name for name in (*OURS, LIBRARY) if name in group.solutions]
    first, second = OURS
    head = ["T", "rows per expert", "active", "bound ms", *(f"`{name}` ms" for name in names)]
    head += [f"`{first}` over `{second}`", "our best over torch", "our best / bound", "bound by"]
    lines = ["| " + " | ".join(head) + " |", "|" + " ---: |" * (len(head) - 1) + " --- |"]
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
            stale = "*" if name in row.cells and row.cells[name].stale else ""
            cells.append(f"{ms[name]:.3f}{stale}" if name in ms else "-")
        cells += [ratio(ms.get(second), ms.get(first)), ratio(ms.get(LIBRARY), best), ratio(best, info.bound_ms)]
        cells.append("-" if not info.bound_ms else "memory" if memory >= 0.999 * info.bound_ms else "products")
        lines.append("| " + " | ".join(cells) + " |")
    notes = f"{section.hardware}, {group.tolerance}; {versions(section)}; {group.protocol}; {' to '.join(group.days)}"
    stale = [name for name in names if any(name in r.cells and r.cells[name].stale for r in group.rows)]
    return "\n".join([*lines, "", f"{notes}.", *([f"\\* {STALE}"] if stale else [])])


def summary_block(found: Comparison) -> str:
    parts = [summary(section, group) for section in found.sections for group in section.groups]
    return "\n\n".join(parts) or "Not measured yet: `moebench run --definition bf16` on a CUDA GPU."


def counters_block(record: LaunchRecord | None) -> str:
    """Markdown: the first product's launch in each solution at each T."""
    if record is None:
        return "Not recorded yet: see moebench profile."
    head = ["T", "solution", "kernel", "grid", "block", "time us", "compute %", "memory %", "DRAM %", "matrix units %"]
    lines = ["| " + " | ".join(head) + " |", "| ---: | --- | --- |" + " ---: |" * (len(head) - 3)]
    rows = []
    for solution in record.solutions:
        current = pack.pack(solution.solution)["bf16"].hash()
        stale = "" if current == solution.solution_sha1 else "*"
        for point in solution.points:
            for launch in point.launches:
                if launch.stage.startswith("gemm1"):
                    percents = (
                        launch.compute_percent,
                        launch.memory_percent,
                        launch.dram_percent,
                        launch.tensor_percent,
                    )
                    cells = [str(point.T), f"`{solution.solution}`{stale}", f"`{launch.kernel}`"]
                    cells += [str(launch.grid), str(launch.block), f"{launch.us:.1f}", *(f"{p:.1f}" for p in percents)]
                    rows.append((point.T, cells))
    lines += ["| " + " | ".join(cells) + " |" for _, cells in sorted(rows, key=lambda row: row[0])]
    said = f"{record.hardware}, ncu, each kernel alone with cold caches; {record.timestamp[:10]}; `{record.command}`."
    return "\n".join([*lines, "", said, *([f"\\* {STALE}"] if any("*" in cells[1] for _, cells in rows) else [])])


def stages_block(record: LaunchRecord | None, found: Comparison) -> str:
    """Markdown: each kernel's time of one call under ncu, their sum, and the whole call as the harness timed it."""
    if record is None:
        return "Not recorded yet: see moebench profile."
    timed = {
        (name, cell.uuid): cell.latency_ms
        for section in found.sections
        if section.hardware == record.hardware
        for group in section.groups
        for row in group.rows
        for name, cell in row.cells.items()
    }
    bounds = {info.uuid: info.bound_ms for section in found.sections for info in section.workloads}
    lines = ["| T | solution | kernels, us | sum us | sum / bound | call us | outside kernels us |"]
    lines.append("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    for solution in record.solutions:
        for point in solution.points:
            total = sum(launch.us for launch in point.launches)
            each = ", ".join(f"{launch.stage} {launch.us:.1f}" for launch in point.launches)
            ms = timed.get((solution.solution, point.uuid))
            rest = [f"{1e3 * ms:.1f}", f"{1e3 * ms - total:.1f}"] if ms else ["-", "-"]
            cells = [str(point.T), f"`{solution.solution}`", each, f"{total:.1f}"]
            cells.append(f"{total / bounds[point.uuid] / 1e3:.2f}" if bounds.get(point.uuid) else "-")
            cells += rest
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def renewed(page: str, found: Comparison, launches: Path = LAUNCHES) -> str:
    """The page with its three blocks made anew. Raises ValueError when a marker is missing or the record is none."""
    record = read_launches(launches) if launches.exists() else None
    page = marked_block.replaced(page, *SUMMARY, summary_block(found), PAGE.name)
    page = marked_block.replaced(page, *COUNTERS, counters_block(record), PAGE.name)
    return marked_block.replaced(page, *STAGES, stages_block(record, found), PAGE.name)
