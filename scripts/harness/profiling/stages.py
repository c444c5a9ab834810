"""From the launches that torch.profiler saw to times by stage, with a warning for each kernel that is doubtful.

Launches are a DataFrame with one row each: `kernel`, its plain name; `start` and `us`, its start on the device and its
duration in microseconds; `call`, the number of the call that it is part of.
"""

import numpy as np
import pandas as pd

from harness.packing.stages import UNASSIGNED, stage_of
from harness.profiling.record import KernelTime, StageTime

HOST_OPERATIONS = "torch operations"  # on a CPU: what a solution does between its kernels


def kernel_times(launches: pd.DataFrame) -> list[KernelTime]:
    """Longest first."""
    kernels = launches.groupby("kernel", sort=False).us.agg(["size", "sum", "mean"])
    return [
        KernelTime(name=name, instances=instances, total_us=round(total, 3), average_us=round(mean, 3))
        for name, instances, total, mean in kernels.sort_values("sum", ascending=False, kind="stable").itertuples()
    ]


def stage_times(launches: pd.DataFrame, table: dict[str, str], clock: str) -> list[StageTime]:
    """The stages that were seen, in the table's order, then what fits no pattern.

    On a CPU torch's own operations (aten::...) that fit no pattern are `HOST_OPERATIONS`, not unassigned.
    """

    def stage_or_default(kernel: str) -> str:
        is_torch = clock == "cpu" and kernel.startswith("aten::")
        return stage_of(kernel, table) or (HOST_OPERATIONS if is_torch else UNASSIGNED)

    # Relative to its call's first kernel, for where a stage begins and ends.
    begin = launches.start - launches.groupby("call").start.transform("min")
    launches = launches.assign(begin=begin, end=begin + launches.us)
    by_stage = dict(list(launches.groupby(launches.kernel.map(stage_or_default))))
    times = []
    for stage in dict.fromkeys([*table.values(), HOST_OPERATIONS, UNASSIGNED]):
        if stage in by_stage:
            total_us, kernels = by_stage[stage].us.sum(), kernel_times(by_stage[stage])
            share = round(total_us / launches.us.sum(), 4)
            by_call = by_stage[stage].groupby("call")
            span = {"begin_us": by_call.begin.min().median(), "end_us": by_call.end.max().median()}
            span = {name: round(us, 3) for name, us in span.items()}
            times.append(StageTime(stage=stage, kernels=kernels, total_us=round(total_us, 3), share=share, **span))
    return times


def busy_us(launches: pd.DataFrame, calls: int) -> float:
    """Microseconds of one call in which at least one of its kernels runs: the union of their intervals; a mean."""
    ordered = launches.sort_values("start")
    end = ordered.start + ordered.us
    covered = end.groupby(ordered.call).cummax().groupby(ordered.call).shift()  # until when those before it run
    return round((end - np.fmax(ordered.start, covered)).clip(lower=0).sum() / calls, 3)


def warnings(stages: list[StageTime], launches: pd.DataFrame, calls: int) -> list[str]:
    """A line for each kernel without a stage, for each whose launches do not go with the calls, and for none at all."""
    unassigned = [kernel.name for stage in stages if stage.stage == UNASSIGNED for kernel in stage.kernels]
    lines = [f"{name}: unassigned: no pattern in [stages] of solution.toml fits" for name in unassigned]
    for kernel, of_kernel in launches.groupby("kernel", sort=False):
        counts = of_kernel.call.value_counts().reindex(range(calls), fill_value=0)
        low, high = counts.min(), counts.max()
        if low == 0:
            lines.append(f"{kernel}: in {(counts > 0).sum()} of {calls} calls")
        elif low < high:
            lines.append(f"{kernel}: {low} to {high} launches a call, want the same in all {calls} calls")
    return lines if stages else [*lines, "no kernel was seen inside the calls"]
