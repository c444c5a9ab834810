"""What a profile of a solution records, in the format of docs/data/profile/**/*.json.

Times are microseconds. `total_us` is the sum over all `calls` of a workload, so `total_us / calls` is a call's share;
`wall_us` and `host_us` are those of one call.
"""

from pathlib import Path

from harness.core.provenance import Provenance
from harness.core.schema import Strict, read_json


class Counters(Strict):
    """Of one launch under ncu, which starts every kernel with cold caches; or of a stage's launches in one call.

    us: time. grid: thread blocks; block: threads in one; both only of one launch. percent: of the device's peak; of a
    stage, weighted by time. None: ncu could not tell, or it was not asked.
    """

    us: float
    grid: int | None = None
    block: int | None = None
    compute_percent: float | None = None
    memory_percent: float | None = None
    dram_percent: float | None = None
    tensor_percent: float | None = None
    occupancy_percent: float | None = None


class KernelTime(Strict):
    """All launches of one kernel; average_us is that of a launch. counters: of each launch in one call, in order."""

    name: str
    instances: int
    total_us: float
    average_us: float
    counters: list[Counters] = []


class StageTime(Strict):
    """share: of the sum of all stages; 0 to 1. Kernels that no pattern fits are stage `unassigned`.

    begin_us, end_us: when the stage's first kernel of a call starts and its last one ends, from the start of the call's
    first kernel; medians over the calls. None in records of before these fields.
    """

    stage: str
    kernels: list[KernelTime]
    total_us: float
    share: float
    begin_us: float | None = None
    end_us: float | None = None
    counters: Counters | None = None


class WorkloadProfile(Strict):
    """One solution on one workload.

    uuid: or KIND:T for a made-up point. other: kernels of the harness, outside the calls. wall_us: a call as FIB times
    it, without a profiler; None where not known. busy_us: the part of a call in which at least one of its kernels
    runs, the union of their intervals; less than pipeline_us where kernels overlap; None in records of before this
    field. host_us: wall_us minus busy_us, or minus pipeline_us in those records. bound_us: the roofline bound on an
    H200. warnings: a line for everything that makes the figures doubtful.
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
    busy_us: float | None = None

    @property
    def pipeline_us(self) -> float:
        """Sum of one call's kernels, each with its whole duration (CPU time on a CPU)."""
        return sum(stage.total_us for stage in self.stages) / self.calls

    @property
    def overlap_us(self) -> float:
        """How much longer the sum of a call's kernels is than the time in which they run; 0 where none overlap.

        Without busy_us this is only a lower limit: by how much the sum exceeds the wall time.
        """
        if self.busy_us is None:
            return max(0.0, -(self.host_us or 0.0))
        return max(0.0, round(self.pipeline_us - self.busy_us, 1))  # a profiler's clock has steps of nanoseconds

    @property
    def device_us(self) -> float | None:
        """How long kernels run in one call; None where they overlap and the record does not say by how much."""
        if self.busy_us is None:
            return None if self.overlap_us else self.pipeline_us
        return self.busy_us


class ProfileRecord(Strict):
    """One solution on one machine. clock: "device", or "cpu" for times of Triton's interpreter."""

    solution: str
    definition: str
    clock: str
    provenance: Provenance
    workloads: list[WorkloadProfile]


def read_records(folder: Path) -> list[ProfileRecord]:
    """The records of a folder's *.json by name of file; [] without any. Raises UserError for a file that is none."""
    return [read_json(path, ProfileRecord) for path in sorted(folder.glob("*.json"))]
