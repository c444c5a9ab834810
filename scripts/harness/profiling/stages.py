"""From the kernels that a profiler saw to times by stage, with a warning for each that is doubtful."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.packing.stages import UNASSIGNED, stage_of
from harness.profiling.record import KernelTime, StageTime

HOST_OPERATIONS = "torch operations"  # on a CPU: what a solution does between its kernels


@dataclass(frozen=True)
class Seen:
    """A kernel as a profiler saw it inside the calls, or outside. per_call: launches in each call, where known."""

    name: str
    instances: int
    total_us: float
    per_call: tuple[int, ...] | None = None

    def time(self) -> KernelTime:
        total_us, average_us = round(self.total_us, 3), round(self.total_us / self.instances, 3)
        return KernelTime(name=self.name, instances=self.instances, total_us=total_us, average_us=average_us)


def longest_first(kernels: Iterable[Seen]) -> list[KernelTime]:
    return [kernel.time() for kernel in sorted(kernels, key=lambda kernel: -kernel.total_us)]


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
            share = round(total_us / pipeline_us, 4) if pipeline_us else 0.0
            kernel_times = longest_first(found)
            times.append(StageTime(stage=stage, kernels=kernel_times, total_us=round(total_us, 3), share=share))
    return times


def warnings(stages: list[StageTime], kernels: Iterable[Seen], calls: int) -> list[str]:
    """A line for each kernel without a stage, for each whose launches do not go with the calls, and for none at all."""
    unassigned = [kernel.name for stage in stages if stage.stage == UNASSIGNED for kernel in stage.kernels]
    lines = [f"{name}: unassigned: no pattern in [stages] of solution.toml fits" for name in unassigned]
    for kernel in kernels:
        if kernel.per_call and 0 in kernel.per_call:
            lines.append(f"{kernel.name}: in {sum(count > 0 for count in kernel.per_call)} of {calls} calls")
        elif kernel.per_call and len(set(kernel.per_call)) > 1:
            low, high = min(kernel.per_call), max(kernel.per_call)
            lines.append(f"{kernel.name}: {low} to {high} launches a call, want the same in all {calls} calls")
        elif kernel.instances % calls:
            lines.append(f"{kernel.name}: {kernel.instances} launches in {calls} calls, want a multiple")
    return lines if stages else [*lines, "no kernel was seen inside the calls"]
