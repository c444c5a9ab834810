"""What a profile of a solution records, in the format of docs/data/profile/*.json.

Times are microseconds. `total_us` is the sum over all `calls` of a workload, so `total_us / calls` is a call's share;
`wall_us` and `host_us` are those of one call.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.core.schema import first_fault
from harness.packing.stages import UNASSIGNED, stage_of

HOST_OPERATIONS = "torch operations"  # on a CPU: what a solution does between its kernels


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KernelTime(Strict):
    """All launches of one kernel; average_us is that of a launch."""

    name: str
    instances: int
    total_us: float
    average_us: float


class Counters(Strict):
    """Of one call under ncu, which starts every kernel with cold caches; percent of the device's peak, by time.

    us: time of the stage's kernels. None: ncu could not tell.
    """

    us: float
    dram_percent: float | None
    tensor_percent: float | None
    occupancy_percent: float | None


class StageTime(Strict):
    """share: of the pipeline, the sum of all stages; 0 to 1. Kernels that no pattern fits are stage `unassigned`."""

    stage: str
    kernels: list[KernelTime]
    total_us: float
    share: float
    counters: Counters | None = None


class WorkloadProfile(Strict):
    """One solution on one workload.

    uuid: or KIND:T for a made-up point. other: kernels of the harness, outside the calls. wall_us: a call as FIB times
    it, without a profiler; host_us: wall_us minus the device's time in a call; None where not known. bound_us: the
    least an H200 needs. warnings: a line for everything that makes the figures doubtful.
    """

    uuid: str
    T: int
    calls: int
    stages: list[StageTime]
    other: list[KernelTime]
    wall_us: float | None
    host_us: float | None
    bound_us: float | None
    warnings: list[str]

    @property
    def pipeline_us(self) -> float:
        """Device time of one call (CPU time on a CPU)."""
        return sum(stage.total_us for stage in self.stages) / self.calls

    @property
    def overlap_us(self) -> float:
        """By how much the kernels of a call overlap at least: they add up to more than it takes. 0 if they do not."""
        return max(0.0, -(self.host_us or 0.0))


class ProfileRecord(Strict):
    """One solution on one machine. clock: "device", or "cpu" for times of Triton's interpreter."""

    solution: str
    solution_sha1: str
    hardware: str
    clock: str
    backend: str
    libs: dict[str, str]
    command: str
    timestamp: str
    workloads: list[WorkloadProfile]


@dataclass(frozen=True)
class Seen:
    """A kernel as a profiler saw it inside the calls, or outside. per_call: launches in each call, where known."""

    name: str
    instances: int
    total_us: float
    per_call: tuple[int, ...] | None = None


def kernel_time(seen: Seen) -> KernelTime:
    return KernelTime(
        name=seen.name,
        instances=seen.instances,
        total_us=round(seen.total_us, 3),
        average_us=round(seen.total_us / seen.instances, 3),
    )


def instance_warnings(kernels: Iterable[Seen], calls: int) -> list[str]:
    """A line for each kernel whose launches do not go with the number of calls."""
    found = []
    for kernel in kernels:
        if kernel.per_call and 0 in kernel.per_call:
            present = sum(count > 0 for count in kernel.per_call)
            found.append(f"{kernel.name}: in {present} of {calls} calls")
        elif kernel.per_call and len(set(kernel.per_call)) > 1:
            low, high = min(kernel.per_call), max(kernel.per_call)
            found.append(f"{kernel.name}: {low} to {high} launches a call, want the same in all {calls} calls")
        elif kernel.instances % calls:
            found.append(f"{kernel.name}: {kernel.instances} launches in {calls} calls, want a multiple")
    return found


def stage_times(kernels: Iterable[Seen], table: dict[str, str], clock: str) -> list[StageTime]:
    """The stages that were seen, in the table's order, then what fits no pattern; kernels longest first.

    On a CPU torch's own operations (aten::...) that fit no pattern are `HOST_OPERATIONS`, not unassigned.
    """
    by_stage: dict[str, list[Seen]] = {stage: [] for stage in [*table.values(), HOST_OPERATIONS, UNASSIGNED]}
    for kernel in kernels:
        default = HOST_OPERATIONS if clock == "cpu" and kernel.name.startswith("aten::") else UNASSIGNED
        by_stage[stage_of(kernel.name, table) or default].append(kernel)
    pipeline_us = sum(kernel.total_us for found in by_stage.values() for kernel in found)
    times = []
    for stage, found in by_stage.items():
        if found:
            total_us = sum(kernel.total_us for kernel in found)
            longest_first = sorted(found, key=lambda kernel: -kernel.total_us)
            times.append(
                StageTime(
                    stage=stage,
                    kernels=[kernel_time(kernel) for kernel in longest_first],
                    total_us=round(total_us, 3),
                    share=round(total_us / pipeline_us, 4) if pipeline_us else 0.0,
                )
            )
    return times


def stage_warnings(stages: list[StageTime]) -> list[str]:
    """A line for each kernel that is `unassigned`, and one when nothing was launched at all."""
    unassigned = [kernel.name for stage in stages if stage.stage == UNASSIGNED for kernel in stage.kernels]
    lines = [f"{name}: unassigned: no pattern in [stages] of solution.toml fits" for name in unassigned]
    return lines if stages else [*lines, "no kernel was seen inside the calls"]


def read_record(path: Path) -> ProfileRecord:
    """A record from its file. Raises ValueError, one line, for a file that holds none."""
    try:
        return ProfileRecord.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ValueError(f"{path.name}: no profile record: {first_fault(error, 'file')}") from error
