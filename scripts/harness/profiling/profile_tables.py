"""Tables of profiles: one model of rows and cells, shown in a terminal or as Markdown."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.packing.stages import UNASSIGNED
from harness.profiling.head_to_head import Row, compare
from harness.profiling.profile_record import KernelTime, ProfileRecord, StageTime, WorkloadProfile

HARNESS = "(harness)"
COUNTERS = {"us": "ncu us", "dram_percent": "DRAM %", "tensor_percent": "tensor %", "occupancy_percent": "occupancy %"}


@dataclass(frozen=True)
class Grid:
    """left: columns that hold words. notes stand below; warnings too, and cannot be overlooked."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    left: int
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def label(profile: WorkloadProfile) -> str:
    return f"T={profile.T}" if ":" not in profile.uuid else f"T={profile.T} ({profile.uuid.partition(':')[0]} routing)"


def unit(clock: str) -> str:
    return "us" if clock == "device" else "CPU us"


def stage_grid(record: ProfileRecord, profile: WorkloadProfile) -> Grid:
    """Every kernel of one solution on one workload, by stage; what the harness ran, apart."""
    counted = any(stage.counters for stage in profile.stages)
    total = sum(stage.total_us for stage in profile.stages)
    rows = [row for stage in profile.stages for row in stage_rows(stage, total, counted)]
    blanks = [""] * (len(COUNTERS) if counted else 0)
    launches = sum(kernel.instances for stage in profile.stages for kernel in stage.kernels)
    rows.append(["pipeline", "", str(launches), f"{total:.1f}", "", "100.0%", *blanks])
    rows += [[HARNESS, *kernel_cells(kernel), "-", *blanks] for kernel in profile.other]
    us = unit(record.clock)
    headings = ["stage", "kernel", "instances", f"total {us}", f"average {us}", "share"]
    return Grid(
        title=f"{record.solution}, {label(profile)}",
        headings=headings + (list(COUNTERS.values()) if counted else []),
        rows=rows,
        left=2,
        notes=[per_call(record, profile)],
        warnings=profile.warnings,
    )


def stage_rows(stage: StageTime, total: float, counted: bool) -> Iterable[list[str]]:
    """A row a kernel; the first says the stage and its counters."""
    for at, kernel in enumerate(stage.kernels):
        share = f"{kernel.total_us / total:.1%}" if total else "-"
        row = [stage.stage if at == 0 else "", *kernel_cells(kernel), share]
        if counted:
            values = [getattr(stage.counters, name) if stage.counters and at == 0 else None for name in COUNTERS]
            row += ["" if at else "-" if value is None else f"{value:.1f}" for value in values]
        yield row


def kernel_cells(kernel: KernelTime) -> list[str]:
    return [kernel.name, str(kernel.instances), f"{kernel.total_us:.1f}", f"{kernel.average_us:.2f}"]


def per_call(record: ProfileRecord, profile: WorkloadProfile) -> str:
    """One line on a single call: kernels, wall, host and bound where known."""
    said = [f"{profile.calls} calls; one call: kernels {profile.pipeline_us:.1f} {unit(record.clock)}"]
    if profile.wall_us is not None:
        said.append(f"wall {profile.wall_us:.1f} us")
    if profile.overlap_us > 0:
        said.append(f"kernels that overlap by {profile.overlap_us:.1f} us or more")
    elif profile.host_us is not None:
        said.append(f"host and gaps {profile.host_us:.1f} us")
    if profile.bound_us:
        said.append(f"bound {profile.bound_us:.1f} us (kernels / bound {profile.pipeline_us / profile.bound_us:.2f})")
    return ", ".join(said)


def head_to_head_grid(records: list[ProfileRecord], uuid: str) -> Grid:
    """Records of one machine on one workload: microseconds a call, and ratios to the first solution."""
    profiles = {r.solution: profile for r in records for profile in r.workloads if profile.uuid == uuid}
    first, *others = profiles
    us = unit(records[0].clock)
    headings = ["stage", *(f"{name} {us}" for name in profiles), *(f"{name} / {first}" for name in others)]
    return Grid(
        title=f"{' and '.join(profiles)}, {label(profiles[first])}, one call",
        headings=headings,
        rows=[comparison_cells(row, list(profiles), others) for row in compare(profiles)],
        left=1,
        notes=[overlap_note(name, profile) for name, profile in profiles.items() if profile.overlap_us > 0],
    )


def overlap_note(solution: str, profile: WorkloadProfile) -> str:
    return (
        f"{solution}: a kernel begins before the one in front of it is over, and waits; its stages add up to "
        f"{profile.overlap_us:.1f} us more than a call takes, or to more than that. Compare the wall times."
    )


def comparison_cells(row: Row, solutions: list[str], others: list[str]) -> list[str]:
    times = [f"{row.us[name]:.1f}" if name in row.us else "-" for name in solutions]
    ratios = [row.ratio(name, solutions[0]) for name in others]
    return [row.stage, *times, *("-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios)]


def common_uuids(records: list[ProfileRecord]) -> list[str]:
    """Workloads that all records have, by T."""
    lengths = {profile.uuid: profile.T for record in records for profile in record.workloads}
    everywhere = set.intersection(*({profile.uuid for profile in record.workloads} for record in records))
    return sorted(everywhere, key=lambda uuid: (lengths[uuid], uuid))


def grids(records: list[ProfileRecord]) -> list[Grid]:
    """A table a solution and workload, then one a workload that puts the solutions side by side."""
    found = [stage_grid(record, profile) for record in records for profile in record.workloads]
    if len(records) > 1:
        found += [head_to_head_grid(records, uuid) for uuid in common_uuids(records)]
    return found


def terminal(grid: Grid) -> Group:
    table = Table(title=escape(grid.title))
    for at, heading in enumerate(grid.headings):
        table.add_column(heading, justify="left" if at < grid.left else "right")
    for row in grid.rows:
        style = {UNASSIGNED: "bold red", HARNESS: "dim", "pipeline": "bold"}.get(row[0], "")
        table.add_row(*(Text(cell) for cell in row), style=style)
    notes = [Text(note) for note in grid.notes]
    return Group(table, *notes, *(Text(f"WARNING {line}", style="bold red") for line in grid.warnings))


def markdown(grid: Grid) -> str:
    rule = ["---"] * grid.left + ["---:"] * (len(grid.headings) - grid.left)
    lines = [f"**{grid.title}**", "", *("| " + " | ".join(row) + " |" for row in (grid.headings, rule, *grid.rows))]
    for line in [*grid.notes, *(f"**Warning**: {line}" for line in grid.warnings)]:
        lines += ["", line]
    return "\n".join(lines)
