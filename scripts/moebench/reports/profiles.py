"""Records of `moebench profile` as one table: us of each stage, a column for each workload.

`moebench profile` shows what it has measured by `table`, and docs/pages.py the records in the
repository, which `recorded` returns.
"""

from collections.abc import Iterable
from statistics import fmean

import pandas as pd

from moebench.core import paths
from moebench.operators.roofline import MEASURED_ON
from moebench.profiling.record import (
    Counters,
    Kernel,
    ProfileRecord,
    WorkloadProfile,
    read_records,
)
from moebench.reports.table import Row, Table, decimal, frame_rows
from moebench.results import staleness
from moebench.results.bounds import by_ceilings_of_today

CAPTION = (
    "us of one call. In brackets, under ncu: % of DRAM's peak, and % of the cycles in which "
    "tensor cores work. Busy: the time in which kernels run, less than the stages' sum where they "
    "overlap. Wall: a call as FIB times it."
)
CALL_ROWS = ("busy", "host and gaps", "wall", "wall / bound")


def recorded() -> list[ProfileRecord]:
    """Return the records below paths.PROFILES, with bounds by today's ceilings.

    Raises UserError for a file that is no such record.
    """
    records = []
    for record in read_records(paths.PROFILES):
        profiles = []
        for profile in record.workloads:
            profiles.append(with_bound_of_today(record, profile))
        records.append(record.model_copy(update={"workloads": profiles}))
    return records


def with_bound_of_today(
    record: ProfileRecord, profile: WorkloadProfile
) -> WorkloadProfile:
    """Return a record's profile with its bound, if it has one, by today's ceilings."""
    if not profile.bound_us:
        return profile
    bound_us = by_ceilings_of_today(
        profile.bound_us, record.ceilings, record.definition, profile.T
    )
    return profile.model_copy(update={"bound_us": bound_us})


def table(records: list[ProfileRecord]) -> Table:
    """Return the table, a section for each solution. records: of one machine."""
    profiles = [profile for record in records for profile in record.workloads]
    profiles.sort(key=lambda profile: (profile.T, profile.uuid))
    labels = {profile.uuid: profile.label for profile in profiles}
    warnings = []
    for record in records:
        for profile in record.workloads:
            source = f"Warning: {record.solution}, {profile.label}"
            warnings += [f"{source}: {line}" for line in profile.warnings]

    return Table(
        head=["solution", "stage", *labels.values()],
        sections=[section(record, labels) for record in records],
        title=f"{records[0].provenance.hardware}, us",
        word_columns=2,
        caption=CAPTION,
        notes=warnings,
        key_columns=2,
    )


def section(record: ProfileRecord, uuids: Iterable[str]) -> list[Row]:
    """Return a solution's rows: stages, in the order of the last workload's, then the call as a
    whole.

    The solution's name stands in the first row alone. A row without any figure is left out.
    """
    has_bound = record.provenance.hardware == MEASURED_ON  # the bound is one machine's
    texts = {}
    names = {}
    for profile in reversed(record.workloads):
        texts[profile.uuid] = profile_texts(profile, has_bound)
        names |= dict.fromkeys(profile.stages)

    row_names = [*names, *CALL_ROWS]
    table = pd.DataFrame(texts, index=row_names, columns=list(uuids))
    table = table.dropna(how="all").reset_index()
    if table.empty:
        return []
    table.insert(0, "solution", "")
    table.loc[0, "solution"] = record.solution
    return frame_rows(table)


def profile_texts(profile: WorkloadProfile, has_bound: bool) -> dict[str, str]:
    """Return name of a row -> text: us of each stage, and of the call what CALL_ROWS are called."""
    texts = {}
    for stage, kernels in profile.stages.items():
        texts[stage] = stage_text(kernels)
    texts["busy"] = f"{profile.busy_us:.1f}"
    if not profile.wall_us:
        return texts

    between = profile.wall_us - profile.busy_us
    texts["host and gaps"] = f"{between:.1f}"
    texts["wall"] = f"{profile.wall_us:.1f}"
    if profile.bound_us and has_bound:
        over_bound = profile.wall_us / profile.bound_us
        texts["wall / bound"] = f"{over_bound:.2f}"
    return texts


def stage_text(kernels: list[Kernel]) -> str:
    """Return the us of a stage, and in brackets the percentages of DRAM and tensor cores, "244.5
    (86.5, 15.5)"; without brackets where ncu did not count.
    """
    us = sum(kernel.us for kernel in kernels)
    launches = [launch for kernel in kernels for launch in kernel.counters]
    if not launches:
        return f"{us:.1f}"
    dram = mean_percent(launches, "dram_percent")
    tensor = mean_percent(launches, "tensor_percent")
    return f"{us:.1f} ({dram}, {tensor})"


def mean_percent(launches: list[Counters], field: str) -> str:
    """Return the mean of a field of Counters, weighted by the launches' times; "-" without any."""
    values = []
    weights = []
    for launch in launches:
        value = getattr(launch, field)
        if value is not None:
            values.append(value)
            weights.append(launch.us)
    return decimal(fmean(values, weights), 1) if values else "-"


def origin(record: ProfileRecord) -> str:
    """Return how a record was made: state of its source, date, protocol, versions and command."""
    by = record.provenance
    state = staleness.judge_record(by, record.solution)
    name = record.solution
    if state != "current":
        name += f" ({state})"

    day = by.timestamp[:10]
    protocol = by.protocol or ""
    parts = [day, protocol, by.versions_text, f"`{by.command}`"]
    if by.earlier_code:
        parts.append(f"of earlier code: {by.earlier_code}")
    return f"{name}: {', '.join(parts)}"
