"""Profiles as tables, and the generated block of docs/profile.md."""

import json
from collections import defaultdict
from collections.abc import Iterable

import pandas as pd

from harness.core import paths
from harness.packing.stages import UNASSIGNED
from harness.profiling.record import KernelTime, ProfileRecord, StageTime, WorkloadProfile, read_records
from harness.profiling.side_by_side import common_uuids, compare, on_workload
from harness.report.table import Cell, Table
from harness.results import staleness

HARNESS = "(harness)"
COUNTERS = {"us": "ncu us", "dram_percent": "DRAM %", "tensor_percent": "tensor %", "occupancy_percent": "occupancy %"}


def label(profile: WorkloadProfile) -> str:
    return f"T={profile.T}" if ":" not in profile.uuid else f"T={profile.T} ({profile.uuid.partition(':')[0]} routing)"


def number(value: float | None, form: str = ".1f", after: str = "") -> str:
    return "-" if pd.isna(value) else f"{value:{form}}{after}"


def unit(clock: str) -> str:
    return "us" if clock == "device" else "CPU us"


def breakdown(record: ProfileRecord, profile: WorkloadProfile) -> Table:
    """Every kernel of one solution on one workload, by stage; what the harness ran, apart."""
    counted = any(stage.counters for stage in profile.stages)
    total = sum(stage.total_us for stage in profile.stages)
    rows = [row for stage in profile.stages for row in stage_rows(stage, total, counted)]
    blanks = [""] * (len(COUNTERS) if counted else 0)
    launches = sum(kernel.instances for stage in profile.stages for kernel in stage.kernels)
    rows.append(["pipeline", "", str(launches), f"{total:.1f}", "", "100.0%", *blanks])
    for kernel in profile.other:
        rows.append([Cell(text, "stale") for text in (HARNESS, *kernel_cells(kernel), "-", *blanks)])
    us = unit(record.clock)
    head = ["stage", "kernel", "instances", f"total {us}", f"average {us}", "share"]
    return Table(
        head=head + (list(COUNTERS.values()) if counted else []),
        sections=[rows],
        title=f"{record.solution}, {label(profile)}",
        words=2,
        notes=[per_call(record, profile)],
        warnings=profile.warnings,
    )


def stage_rows(stage: StageTime, total: float, counted: bool) -> Iterable[list[Cell | str]]:
    """One row per kernel; the first has the stage's name and counters."""
    for at, kernel in enumerate(stage.kernels):
        share = f"{kernel.total_us / total:.1%}" if total else "-"
        row = [stage.stage if at == 0 else "", *kernel_cells(kernel), share]
        if counted:
            values = [getattr(stage.counters, name) if stage.counters and at == 0 else None for name in COUNTERS]
            row += ["" if at else "-" if value is None else f"{value:.1f}" for value in values]
        yield [Cell(text, "failed") for text in row] if stage.stage == UNASSIGNED else row


def kernel_cells(kernel: KernelTime) -> list[str]:
    return [kernel.name, str(kernel.instances), f"{kernel.total_us:.1f}", f"{kernel.average_us:.2f}"]


def per_call(record: ProfileRecord, profile: WorkloadProfile) -> str:
    """One line on a single call: kernels, wall, host and bound where known."""
    parts = [f"{profile.calls} calls; one call: kernels {profile.pipeline_us:.1f} {unit(record.clock)}"]
    if profile.wall_us is not None:
        parts.append(f"wall {profile.wall_us:.1f} us")
    if profile.overlap_us > 0:
        parts.append(f"kernels that overlap by {profile.overlap_us:.1f} us or more")
    elif profile.host_us is not None:
        parts.append(f"host and gaps {profile.host_us:.1f} us")
    if profile.bound_us:
        parts.append(f"bound {profile.bound_us:.1f} us (kernels / bound {profile.pipeline_us / profile.bound_us:.2f})")
    return ", ".join(parts)


def comparison(records: list[ProfileRecord], uuid: str) -> Table:
    """Records of one machine on one workload: microseconds a call, and ratios to the first solution."""
    found = on_workload(records, uuid)
    first, *others = found
    us = unit(records[0].clock)
    times = compare(found)
    ratios = times[others].div(times[first], axis=0)
    rows = [
        [stage, *(number(us) for us in times.loc[stage]), *(number(x, ".2f", "x") for x in ratios.loc[stage])]
        for stage in times.index
    ]
    return Table(
        head=["stage", *(f"{name} {us}" for name in found), *(f"{name} / {first}" for name in others)],
        sections=[rows],
        title=f"{' and '.join(found)}, {label(found[first])}, one call",
        notes=[overlap_note(name, profile) for name, profile in found.items() if profile.overlap_us > 0],
    )


def overlap_note(solution: str, profile: WorkloadProfile) -> str:
    return (
        f"{solution}: a kernel begins before the one in front of it is over, and waits; its stages add up to "
        f"{profile.overlap_us:.1f} us more than a call takes, or to more than that. Compare the wall times."
    )


def tables(records: list[ProfileRecord]) -> list[Table]:
    """One table per solution and workload, then one per workload that puts the solutions side by side."""
    found = [breakdown(record, profile) for record in records for profile in record.workloads]
    if len(records) > 1:
        found += [comparison(records, uuid) for uuid in common_uuids(records)]
    return found


def as_json(records: list[ProfileRecord]) -> str:
    """The records, and for several their comparison by workload."""
    compared = []
    for uuid in common_uuids(records) if len(records) > 1 else []:
        found = on_workload(records, uuid)
        first = records[0].solution
        rows = []
        for stage, us in compare(found).iterrows():
            known = us.dropna()
            ratio = {name: x / known[first] if first in known else None for name, x in known.items()}
            rows.append({"stage": stage, "us": known.to_dict(), "ratio": ratio})
        compared.append({"uuid": uuid, "T": found[first].T, "rows": rows})
    return json.dumps({"records": [r.model_dump() for r in records], "head_to_head": compared}, indent=2) + "\n"


def how_recorded(record: ProfileRecord) -> str:
    """What a reader needs to repeat the record."""
    where = record.provenance
    fresh = staleness.of_record(where, record.solution) == "current"
    parts = [record.solution, f"source {(where.source_sha1 or 'unknown')[:10]}", where.timestamp[:10]]
    parts += [part for part in (where.protocol, where.versions_text) if part]
    stale = "" if fresh else " **Stale: its source has changed since.**"
    return f"- {', '.join(parts)}: `{where.command}`.{stale}"


def records_block(records: list[ProfileRecord], folder: str) -> str:
    """Markdown of all tables: by machine, then by workload: the solutions side by side, then each by itself.

    folder: where the records of this block are kept, for a reader who finds none.
    """
    if not records:
        return f"No profile has been recorded yet: run the command above with `--records {folder}` on a GPU."
    machines = defaultdict(list)
    for record in records:
        machines[record.provenance.hardware, record.clock].append(record)
    parts = []
    for (hardware, clock), found in sorted(machines.items()):
        found.sort(key=lambda record: sum(profile.pipeline_us for profile in record.workloads) / len(record.workloads))
        parts.append(f"## {hardware}{', CPU time of an interpreter' if clock == 'cpu' else ''}")
        parts.append("\n".join(how_recorded(record) for record in found))
        lengths = {profile.uuid: profile.T for record in found for profile in record.workloads}
        for uuid in sorted(lengths, key=lambda uuid: (lengths[uuid], uuid)):
            parts.append(f"### T = {lengths[uuid]}, {uuid}")
            if len(found) > 1 and uuid in common_uuids(found):
                parts.append(comparison(found, uuid).markdown(titled=True))
            for record in found:
                parts += [breakdown(record, p).markdown(titled=True) for p in record.workloads if p.uuid == uuid]
    return "\n\n".join(parts)


def block() -> str:
    """Of docs/profile.md. Raises UserError for a file that is no record."""
    return records_block(read_records(paths.PROFILES), "docs/data/profile")
