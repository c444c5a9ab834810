"""Profiles as tables, and the generated block of docs/profile.md."""

import json

import pandas as pd

from harness.core import paths
from harness.packing.stages import UNASSIGNED
from harness.profiling.record import KernelTime, ProfileRecord, WorkloadProfile, read_records
from harness.profiling.side_by_side import by_workload, compare
from harness.report.table import Cell, Table
from harness.results import staleness

COUNTERS = {"us": "ncu us", "dram_percent": "DRAM %", "tensor_percent": "tensor %", "occupancy_percent": "occupancy %"}


def number(value: float | None, form: str = ".1f", after: str = "") -> str:
    """ "-" for None and NaN."""
    return "-" if pd.isna(value) else f"{value:{form}}{after}"


def label(profile: WorkloadProfile) -> str:
    return f"T={profile.T}" if ":" not in profile.uuid else f"T={profile.T} ({profile.uuid.partition(':')[0]} routing)"


def unit(clock: str) -> str:
    return "us" if clock == "device" else "CPU us"


def breakdown(solution: str, profile: WorkloadProfile, clock: str) -> Table:
    """Every kernel by stage, and a stage's counters beside its first; what the harness ran, apart."""
    us, rows = unit(clock), []
    total = sum(stage.total_us for stage in profile.stages)
    for stage in profile.stages:
        for at, kernel in enumerate(stage.kernels):
            row = ["" if at else stage.stage, *kernel_cells(kernel), number(kernel.total_us / total, ".1%")]
            row += ["" if at else number(getattr(stage.counters, name, None)) for name in COUNTERS]
            rows.append([Cell(text, "failed") for text in row] if stage.stage == UNASSIGNED else row)
    launches = sum(kernel.instances for stage in profile.stages for kernel in stage.kernels)
    blanks = [""] * len(COUNTERS)
    rows.append(["pipeline", "", str(launches), f"{total:.1f}", "", "100.0%", *blanks])
    if profile.overlap_us:
        overlap = profile.overlap_us * profile.calls
        rows.append(["overlap", "", "", f"-{overlap:.1f}", "", f"-{overlap / total:.1%}", *blanks])
    for kernel in profile.other:
        rows.append([Cell(text, "stale") for text in ("(harness)", *kernel_cells(kernel), "-", *blanks)])
    head = ["stage", "kernel", "instances", f"total {us}", f"average {us}", "share"]
    if any(stage.counters for stage in profile.stages):
        head += COUNTERS.values()
    return Table(
        head=head,
        sections=[[row[: len(head)] for row in rows]],
        title=f"{solution}, {label(profile)}",
        words=2,
        notes=[per_call(profile, us)],
        warnings=profile.warnings,
    )


def kernel_cells(kernel: KernelTime) -> list[str]:
    return [kernel.name, str(kernel.instances), f"{kernel.total_us:.1f}", f"{kernel.average_us:.2f}"]


def per_call(profile: WorkloadProfile, us: str) -> str:
    """One line on a single call: kernels, wall, host and bound where known."""
    parts = [f"{profile.calls} calls; one call: kernels {profile.pipeline_us:.1f} {us}"]
    if profile.wall_us is not None:
        parts.append(f"wall {profile.wall_us:.1f} us")
    if profile.overlap_us:
        or_more = " or more" if profile.busy_us is None else ""
        parts.append(f"kernels overlap by {profile.overlap_us:.1f} us{or_more}")
    if profile.host_us is not None and profile.device_us is not None:
        parts.append(f"host and gaps {profile.host_us:.1f} us")
    if profile.bound_us:
        parts.append(f"bound {profile.bound_us:.1f} us (kernels / bound {profile.pipeline_us / profile.bound_us:.2f})")
    return ", ".join(parts)


def comparison(found: dict[str, WorkloadProfile], clock: str) -> Table:
    """found: by solution, on one workload. Microseconds a call, and ratios to the first solution."""
    first, *others = found
    times = compare(found)
    ratios = times[others].div(times[first], axis=0)
    rows = [
        [stage, *(number(us) for us in times.loc[stage]), *(number(x, ".2f", "x") for x in ratios.loc[stage])]
        for stage in times.index
    ]
    return Table(
        head=["stage", *(f"{name} {unit(clock)}" for name in found), *(f"{name} / {first}" for name in others)],
        sections=[rows],
        title=f"{' and '.join(found)}, {label(found[first])}, one call",
        notes=[
            f"{solution}: a kernel starts before the previous one ends, and waits: the stages add up to "
            f"{'' if profile.busy_us is not None else 'at least '}{profile.overlap_us:.1f} us more than the kernels "
            "take together. Compare the wall times."
            for solution, profile in found.items()
            if profile.overlap_us
        ],
    )


def side_by_side(records: list[ProfileRecord]) -> list[dict[str, WorkloadProfile]]:
    """Solution -> profile for each workload that all of several records have."""
    return [found for found in by_workload(records).values() if 1 < len(found) == len(records)]


def tables(records: list[ProfileRecord]) -> list[Table]:
    """Of one machine: one table per solution and workload, then one per workload with all solutions."""
    found = [breakdown(r.solution, profile, r.clock) for r in records for profile in r.workloads]
    return found + [comparison(profiles, records[0].clock) for profiles in side_by_side(records)]


def as_json(records: list[ProfileRecord]) -> str:
    """The records, and for several their comparison by workload."""
    compared = []
    for found in side_by_side(records):
        first, rows = next(iter(found)), []
        for stage, us in compare(found).iterrows():
            known = us.dropna().to_dict()
            ratio = {name: time / known[first] if known.get(first) else None for name, time in known.items()}
            rows.append({"stage": stage, "us": known, "ratio": ratio})
        compared.append({"uuid": found[first].uuid, "T": found[first].T, "rows": rows})
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
    parts = []
    for hardware, clock in sorted({(record.provenance.hardware, record.clock) for record in records}):
        here = [record for record in records if (record.provenance.hardware, record.clock) == (hardware, clock)]
        here.sort(key=lambda record: sum(profile.pipeline_us for profile in record.workloads) / len(record.workloads))
        parts.append(f"## {hardware}{', CPU time of an interpreter' if clock == 'cpu' else ''}")
        parts.append("\n".join(how_recorded(record) for record in here))
        for uuid, found in by_workload(here).items():
            parts.append(f"### T = {next(iter(found.values())).T}, {uuid}")
            all_tables = [comparison(found, clock)] if 1 < len(found) == len(here) else []
            all_tables += [breakdown(solution, profile, clock) for solution, profile in found.items()]
            parts += [table.markdown(titled=True) for table in all_tables]
    return "\n\n".join(parts)


def block() -> str:
    """Of docs/profile.md. Raises UserError for a file that is no record."""
    return records_block(read_records(paths.PROFILES), "docs/data/profile")
