"""Solutions stage by stage, where one may have fused what another keeps apart."""

from dataclasses import dataclass

from harness.profiling.record import ProfileRecord, StageTime, WorkloadProfile

JOIN = " + "


@dataclass(frozen=True)
class Row:
    """us: of one call, by solution; a solution that lacks the stage is not in it."""

    stage: str
    us: dict[str, float]

    def ratio(self, solution: str, to: str) -> float | None:
        """Time of one solution over that of another; None where either has none."""
        return self.us[solution] / self.us[to] if solution in self.us and self.us.get(to, 0) > 0 else None


def parts(stage: StageTime) -> set[str]:
    return set(stage.stage.split(JOIN))


def smallest_common(profiles: list[WorkloadProfile]) -> list[list[str]]:
    """Groups of stages that no solution divides: route; permute; gemm1 + swiglu_quant where one of them fuses these."""
    groups: list[list[str]] = []
    for profile in profiles:
        for stage in profile.stages:
            touched = [group for group in groups if parts(stage) & set(group)]
            rest = [group for group in groups if group not in touched]
            merged = [part for group in touched for part in group]
            merged += [part for part in stage.stage.split(JOIN) if part not in merged]
            at = groups.index(touched[0]) if touched else len(groups)
            groups = [*rest[:at], merged, *rest[at:]]
    return groups


def compare(profiles: dict[str, WorkloadProfile]) -> list[Row]:
    """profiles: by solution, on one workload. One row per group of stages, then pipeline, host and wall if known.

    Where a solution's kernels overlap, their sum says nothing of the call: it is left out of pipeline and host.
    """
    rows = []
    for group in smallest_common(list(profiles.values())):
        us = {}
        for solution, profile in profiles.items():
            if found := [stage for stage in profile.stages if parts(stage) & set(group)]:
                us[solution] = sum(stage.total_us for stage in found) / profile.calls
        rows.append(Row(JOIN.join(group), us))
    apart = {solution: profile for solution, profile in profiles.items() if profile.overlap_us == 0}
    rows.append(Row("pipeline", {solution: profile.pipeline_us for solution, profile in apart.items()}))
    for field, label, shown in (("host_us", "host and gaps", apart), ("wall_us", "wall", profiles)):
        if all(getattr(profile, field) is not None for profile in profiles.values()):
            rows.append(Row(label, {solution: getattr(profile, field) for solution, profile in shown.items()}))
    return rows


def on_workload(records: list[ProfileRecord], uuid: str) -> dict[str, WorkloadProfile]:
    """Solution -> its profile on one workload, of those that have it."""
    return {r.solution: profile for r in records for profile in r.workloads if profile.uuid == uuid}


def common_uuids(records: list[ProfileRecord]) -> list[str]:
    """Workloads that all records have, by T."""
    lengths = {profile.uuid: profile.T for record in records for profile in record.workloads}
    everywhere = set.intersection(*({profile.uuid for profile in record.workloads} for record in records))
    return sorted(everywhere, key=lambda uuid: (lengths[uuid], uuid))
