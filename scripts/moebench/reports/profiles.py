"""Records of `moebench profile` as one table: us of each stage, a column for each workload."""

from collections.abc import Callable
from functools import partial
from statistics import fmean

from moebench.operators.roofline import MEASURED_ON
from moebench.profiling.record import Kernel, ProfileRecord, WorkloadProfile
from moebench.reports.table import Entry, Table, decimal
from moebench.results import staleness

CAPTION = (
    "us of one call. In brackets, under ncu: % of DRAM's peak, and % of the cycles in which "
    "tensor cores work. Busy: the time in which kernels run, less than the stages' sum where they "
    "overlap. Wall: a call as FIB times it."
)


def table(records: list[ProfileRecord]) -> Table:
    """Return a section for each solution: its stages, then the call as a whole.

    records: of one machine.
    """
    labels = workload_labels(records)
    sections = []
    warnings = []
    for record in records:
        sections.append(section(record, list(labels)))
        for profile in record.workloads:
            for line in profile.warnings:
                warnings.append(f"Warning: {record.solution}, {profile.label}: {line}")

    return Table(
        head=["solution", "stage", *labels.values()],
        sections=sections,
        title=f"{records[0].provenance.hardware}, us",
        words=2,
        caption=CAPTION,
        notes=warnings,
        keys=2,
    )


def workload_labels(records: list[ProfileRecord]) -> dict[str, str]:
    """Return uuid -> label of every workload, by T."""
    profiles = [profile for record in records for profile in record.workloads]
    profiles.sort(key=lambda profile: (profile.T, profile.uuid))
    return {profile.uuid: profile.label for profile in profiles}


def section(record: ProfileRecord, uuids: list[str]) -> list[list[Entry]]:
    """Return a solution's rows: stages, those of the last workload first, then the call as a whole.

    The solution's name stands in the first row alone. A row without any figure is left out.
    """
    by_uuid = {profile.uuid: profile for profile in record.workloads}
    profiles = [by_uuid.get(uuid) for uuid in uuids]

    figures = {stage: partial(stage_text, stage) for stage in stage_names(record)}
    figures |= call_rows(record.provenance.hardware)

    rows: list[list[Entry]] = []
    for name, figure in figures.items():
        cells = [profile and figure(profile) for profile in profiles]
        if any(cells):
            rows.append(["" if rows else record.solution, name, *cells])
    return rows


def stage_names(record: ProfileRecord) -> list[str]:
    """Return the stages of all workloads, those of the last one first."""
    names = {}
    for profile in reversed(record.workloads):
        names.update(dict.fromkeys(profile.stages))
    return list(names)


def stage_text(stage: str, profile: WorkloadProfile) -> str | None:
    """Return "244.5 (86.5, 15.5)"; without brackets where ncu did not count."""
    kernels = profile.stages.get(stage)
    if not kernels:
        return None

    text = f"{sum(kernel.us for kernel in kernels):.1f}"
    if not any(kernel.counters for kernel in kernels):
        return text
    dram = mean_percent(kernels, "dram_percent")
    tensor = mean_percent(kernels, "tensor_percent")
    return f"{text} ({dram}, {tensor})"


def mean_percent(kernels: list[Kernel], field: str) -> str:
    """Return the mean of a percentage of Counters, weighted by the launches' times."""
    values = []
    weights = []
    for kernel in kernels:
        for launch in kernel.counters:
            value = getattr(launch, field)
            if value is not None:
                values.append(value)
                weights.append(launch.us)
    return decimal(fmean(values, weights) if values else None, 1)


def busy(profile: WorkloadProfile) -> str:
    return f"{profile.busy_us:.1f}"


def host_and_gaps(profile: WorkloadProfile) -> str | None:
    return f"{profile.wall_us - profile.busy_us:.1f}" if profile.wall_us else None


def wall(profile: WorkloadProfile) -> str | None:
    return f"{profile.wall_us:.1f}" if profile.wall_us else None


def wall_over_bound(profile: WorkloadProfile) -> str | None:
    if not profile.wall_us or not profile.bound_us:
        return None
    return f"{profile.wall_us / profile.bound_us:.2f}"


def call_rows(hardware: str) -> dict[str, Callable[[WorkloadProfile], str | None]]:
    """Return the rows about a call as a whole; the bound is one machine's."""
    rows = {"busy": busy, "host and gaps": host_and_gaps, "wall": wall}
    if hardware == MEASURED_ON:
        rows["wall / bound"] = wall_over_bound
    return rows


def origin(record: ProfileRecord) -> str:
    """Return how a record was made: date, protocol, versions and command, and if it is stale."""
    by = record.provenance
    state = staleness.judge_record(by, record.solution)
    name = record.solution if state == "current" else f"{record.solution} ({state})"
    parts = [by.timestamp[:10], by.protocol or "", by.versions_text, f"`{by.command}`"]
    if by.earlier_code:
        parts.append(f"of earlier code: {by.earlier_code}")
    return f"{name}: {', '.join(parts)}"
