"""What ncu says of single launches: how large each was, how long it took, and what it kept busy."""

from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from harness.core.environment import environment
from harness.core.schema import first_fault
from harness.packing.stages import stage_of, stage_table
from harness.profiling import ncu_counters
from harness.profiling.profile_points import choose_points
from harness.profiling.profile_record import Strict
from harness.profiling.profile_run import packed
from harness.profiling.profiled_calls import ProfileError, device_here

METRICS = {
    "grid": "launch__grid_size",
    "block": "launch__block_size",
    "compute_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
}


class Launch(Strict):
    """One launch under ncu, with cold caches. grid: thread blocks; block: threads of one; percent: of the peak."""

    kernel: str
    stage: str
    grid: int
    block: int
    us: float
    compute_percent: float
    memory_percent: float
    dram_percent: float
    tensor_percent: float


class PointLaunches(Strict):
    """The launches of one call, in order."""

    uuid: str
    T: int
    launches: list[Launch]


class SolutionLaunches(Strict):
    solution: str
    solution_sha1: str
    points: list[PointLaunches]


class LaunchRecord(Strict):
    """Calls of several solutions on one machine; a file of docs/, one for each study."""

    definition: str
    hardware: str
    libs: dict[str, str]
    command: str
    timestamp: str
    solutions: list[SolutionLaunches]


def launches_of(solution: str, geometry: str, wanted: list[str]) -> SolutionLaunches:
    """Call a solution once on each of the points that `wanted` names, under ncu.

    Raises ProfileError where ncu does not work or lacks a metric, ValueError for a point that there is not.
    """
    points, table = choose_points(wanted, geometry), stage_table(solution)
    report = ncu_counters.record(solution, geometry, [point.uuid for point in points], METRICS.values())
    found = []
    for point, launches in zip(points, ncu_counters.by_point(report, len(points)), strict=True):
        rows = []
        for kernel, values in launches:
            if missing := [metric for metric in (ncu_counters.TIME, *METRICS.values()) if metric not in values]:
                raise ProfileError(f"ncu: no {missing[0]} of {kernel}")
            known = {field: values[metric] for field, metric in METRICS.items()}
            stage = stage_of(kernel, table) or kernel
            rows.append(Launch(kernel=kernel, stage=stage, us=values[ncu_counters.TIME], **known))
        found.append(PointLaunches(uuid=point.uuid, T=point.seq_len, launches=rows))
    return SolutionLaunches(solution=solution, solution_sha1=packed(solution, geometry).hash(), points=found)


def record_launches(
    solutions: list[str], geometry: str, definition: str, wanted: list[str], command: str
) -> LaunchRecord:
    """A LaunchRecord of every solution on every point. Raises as `launches_of`."""
    hardware, libs = environment(device_here())
    return LaunchRecord(
        definition=definition,
        hardware=hardware,
        libs=libs,
        command=command,
        timestamp=datetime.now().isoformat(timespec="seconds"),
        solutions=[launches_of(name, geometry, wanted) for name in solutions],
    )


def read_launches(path: Path) -> LaunchRecord:
    """A record from its file. Raises ValueError, one line, for a file that holds none."""
    try:
        return LaunchRecord.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ValueError(f"{path.name}: no record of launches: {first_fault(error, 'file')}") from error
