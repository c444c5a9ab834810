"""Profiles as tables, and the generated block of docs/profile.md."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from harness.core import paths
from harness.packing.stages import UNASSIGNED
from harness.profiling.record import ProfileRecord, WorkloadProfile, read_records
from harness.profiling.side_by_side import by_workload, compare
from harness.report.table import Cell, Table, decimal
from harness.results import staleness

COUNTERS = {"us": "ncu us", "dram_percent": "DRAM %", "tensor_percent": "tensor %", "occupancy_percent": "warps %"}


def label(profile: WorkloadProfile) -> str:
    return f"T={profile.T}" if ":" not in profile.uuid else f"T={profile.T} ({profile.uuid.partition(':')[0]} routing)"


def unit(clock: str) -> str:
    return "us" if clock == "device" else "CPU us"


def one_call(workloads: list[dict[str, WorkloadProfile]], clock: str) -> Table:
    """workloads: solution -> profile, of each. One row per workload and solution, to compare them by wall time."""
    rows, found = [], [pair for found in workloads for pair in found.items()]
    for solution, profile in found:
        wall, bound, at_least = profile.wall_us, profile.bound_us, "" if profile.busy_us is not None else ">= "
        over_bound = decimal(wall / bound if wall and bound else None, 2)
        overlap = f"{at_least}{profile.overlap_us:.1f}" if profile.overlap_us else "-"
        host = profile.host_us if profile.device_us is not None else None
        row = [label(profile), solution, decimal(wall, 1), decimal(bound, 1), over_bound]
        rows.append([*row, decimal(profile.pipeline_us, 1), overlap, decimal(host, 1)])
    head = ["workload", "solution", "wall us", "bound us", "wall / bound"]
    head += [f"kernels {unit(clock)}", "overlap us", "host and gaps us"]
    notes = [f"Mean of {max(profile.calls for _, profile in found)} calls."]
    if any(profile.overlap_us for _, profile in found):
        notes[0] += " Overlap: by how much the sum of the kernels exceeds the time in which they run."
    return Table(head, [rows], title="One call", words=2, notes=notes)


def kernels(found: dict[str, WorkloadProfile], clock: str) -> Table:
    """found: by solution, on one workload. Every kernel of one call by stage; a stage's counters beside its first."""
    counted = any(stage.counters for profile in found.values() for stage in profile.stages)
    shown = COUNTERS if counted else {}
    head = ["stage", "kernel", unit(clock), "share", *shown.values()]
    sections = []
    for solution, profile in found.items():
        rows = [[Cell(solution, "best"), *[""] * (len(head) - 1)]]
        for stage in profile.stages:
            for at, kernel in enumerate(stage.kernels):
                us, launches = kernel.total_us / profile.calls, kernel.instances / profile.calls
                row = ["" if at else stage.stage, kernel.name + (f" x {launches:g}" if launches != 1 else "")]
                row += [f"{us:.1f}", f"{us / profile.pipeline_us:.1%}"]
                row += ["" if at else decimal(getattr(stage.counters, name, None), 1) for name in shown]
                rows.append([Cell(text, "failed") for text in row] if stage.stage == UNASSIGNED else row)
        sections.append(rows)
    return Table(
        head,
        sections,
        title=f"{label(next(iter(found.values())))}, kernels of one call",
        words=2,
        warnings=[f"{solution}: {line}" for solution, profile in found.items() for line in profile.warnings],
    )


def comparison(found: dict[str, WorkloadProfile], clock: str) -> Table:
    """found: by solution, on one workload. Microseconds a call, and ratios to the first solution."""
    first, *others = found
    times = compare(found)
    ratios = times[others].div(times[first], axis=0)
    rows = [
        [stage, *(decimal(us, 1) for us in times.loc[stage]), *(decimal(x, 2, "x") for x in ratios.loc[stage])]
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
    """Of one machine: all workloads, then each one's kernels, then each with all of several solutions side by side."""
    workloads, clock = list(by_workload(records).values()), records[0].clock
    found = [one_call(workloads, clock), *(kernels(profiles, clock) for profiles in workloads)]
    return found + [comparison(profiles, clock) for profiles in side_by_side(records)]


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


def how_recorded(records: list[ProfileRecord]) -> str:
    """What a reader needs to repeat the records: a line per command, and which of them are stale."""
    runs = defaultdict(list)
    for record in records:
        where = record.provenance
        how = ", ".join(filter(None, (where.timestamp[:10], where.protocol, where.versions_text)))
        runs[f"{how}: `{where.command}`."].append(record)
    lines = []
    for how, of_run in runs.items():
        names = [f"{r.solution} (source {(r.provenance.source_sha1 or 'unknown')[:10]})" for r in of_run]
        old = [r.solution for r in of_run if staleness.of_record(r.provenance, r.solution) != "current"]
        stale = f" **Stale, the source has changed since: {', '.join(old)}.**" if old else ""
        lines.append(f"- {', '.join(names)}: {how}{stale}")
    return "\n".join(lines)


def block(folder: Path = paths.PROFILES) -> str:
    """Markdown: by machine, every workload and solution in one table, then each workload's kernels.

    Raises UserError for a file in folder that is no record.
    """
    records = read_records(folder)
    if not records:
        return "No profile has been recorded yet: run the command above with `--records docs/data/profile` on a GPU."
    parts = []
    machines = defaultdict(list)
    for record in sorted(records, key=lambda record: fmean(profile.pipeline_us for profile in record.workloads)):
        machines[record.provenance.hardware, record.clock].append(record)
    for (hardware, clock), here in sorted(machines.items()):
        workloads = by_workload(here)
        parts.append(f"## {hardware}{', CPU time of an interpreter' if clock == 'cpu' else ''}")
        parts += [how_recorded(here), one_call(list(workloads.values()), clock).markdown()]
        for uuid, found in workloads.items():
            parts += [f"### T = {next(iter(found.values())).T}, {uuid}", kernels(found, clock).markdown()]
    return "\n\n".join(parts)
