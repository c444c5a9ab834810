"""Solutions stage by stage, where one may have fused what another keeps apart."""

import pandas as pd

from harness.profiling.record import ProfileRecord, StageTime, WorkloadProfile

JOIN = " + "


def parts(stage: StageTime) -> list[str]:
    return stage.stage.split(JOIN)


def smallest_common(profiles: list[WorkloadProfile]) -> list[list[str]]:
    """Groups of stages that no solution divides: route; permute; gemm1 + swiglu_quant where one of them fuses these."""
    groups: list[list[str]] = []
    for stage in (stage for profile in profiles for stage in profile.stages):
        touched = [group for group in groups if set(group) & set(parts(stage))]
        at = groups.index(touched[0]) if touched else len(groups)
        groups = [group for group in groups if group not in touched]
        groups.insert(at, list(dict.fromkeys(part for group in [*touched, parts(stage)] for part in group)))
    return groups


def compare(profiles: dict[str, WorkloadProfile]) -> pd.DataFrame:
    """profiles: by solution, on one workload. Microseconds of one call; a column each, NaN for what a solution lacks.

    One row per group of stages, then pipeline, host and wall if known. Pipeline is the time in which a kernel runs;
    where kernels overlap in a record that does not hold that time, pipeline and host are left out.
    """
    rows = {}
    for group in smallest_common(list(profiles.values())):
        rows[JOIN.join(group)] = {
            solution: sum(stage.total_us for stage in found) / profile.calls
            for solution, profile in profiles.items()
            if (found := [stage for stage in profile.stages if set(parts(stage)) & set(group)])
        }
    known = {solution: profile for solution, profile in profiles.items() if profile.device_us is not None}
    rows["pipeline"] = {solution: profile.device_us for solution, profile in known.items()}
    if all(profile.wall_us is not None for profile in profiles.values()):
        rows["host and gaps"] = {solution: profile.host_us for solution, profile in known.items()}
        rows["wall"] = {solution: profile.wall_us for solution, profile in profiles.items()}
    return pd.DataFrame(list(rows.values()), index=list(rows), columns=list(profiles), dtype=float)


def by_workload(records: list[ProfileRecord]) -> dict[str, dict[str, WorkloadProfile]]:
    """uuid -> solution -> its profile, by T."""
    profiles = [(record.solution, profile) for record in records for profile in record.workloads]
    found: dict[str, dict[str, WorkloadProfile]] = {}
    for solution, profile in sorted(profiles, key=lambda pair: (pair[1].T, pair[1].uuid)):
        found.setdefault(profile.uuid, {})[solution] = profile
    return found
