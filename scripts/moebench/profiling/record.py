"""The record of a solution's profile, the format of records/profile/*.json. profile.py makes it,
reports/ read it.

A ProfileRecord has a WorkloadProfile for each workload, and this a Kernel for each kernel. Times
are in microseconds.
"""

from itertools import groupby
from operator import attrgetter
from pathlib import Path

from moebench.core.provenance import Provenance
from moebench.core.schema import Strict, read_json
from moebench.operators.roofline import EARLIER_CEILINGS


class Counters(Strict):
    """What ncu counted in one launch; None where it has "n/a".

    grid: number of thread blocks. block: threads in a block. *_percent: of the device's peak.
    """

    us: float
    grid: int | None = None
    block: int | None = None
    compute_percent: float | None = None
    memory_percent: float | None = None
    dram_percent: float | None = None
    tensor_percent: float | None = None
    occupancy_percent: float | None = None


class Kernel(Strict):
    """All launches of one kernel in a call.

    stage: stages.UNASSIGNED where no pattern fits. launches: how many there are in a call, and us:
    what they take together, both means over calls. counters: of each launch of one call, in order;
    empty where ncu was not asked.
    """

    stage: str
    name: str
    launches: float
    us: float
    counters: list[Counters] = []


class WorkloadProfile(Strict):
    """A solution on a workload, a mean over `calls` calls.

    uuid: of the workload, or KIND:T of one that was made for the profile. kernels: sorted by stage,
    and in a stage by time, the longest first. wall_us: a call as FIB times it, without a profiler;
    None where that failed. busy_us: the time in a call in which at least one kernel runs; where
    kernels overlap it is less than the sum of their times. bound_us: the roofline bound on an H200.
    warnings: a line for everything that makes the figures doubtful.
    """

    uuid: str
    T: int
    calls: int
    kernels: list[Kernel]
    wall_us: float | None = None
    busy_us: float
    bound_us: float | None = None
    warnings: list[str] = []

    @property
    def stages(self) -> dict[str, list[Kernel]]:
        """Return stage -> kernels, in order."""
        groups = groupby(self.kernels, attrgetter("stage"))
        return {stage: list(kernels) for stage, kernels in groups}

    @property
    def label(self) -> str:
        """Return 'T=57', or 'T=57 uniform' for a workload that was made for the profile."""
        kind, is_made_up, _ = self.uuid.partition(":")
        return f"T={self.T} {kind}" if is_made_up else f"T={self.T}"


class ProfileRecord(Strict):
    """A solution's profile on one machine. ceilings: rates by which the bounds divide, as
    roofline.CEILINGS has them for a GPU.
    """

    solution: str
    definition: str
    provenance: Provenance
    workloads: list[WorkloadProfile]
    ceilings: dict[str, float] = EARLIER_CEILINGS


def read_records(folder: Path) -> list[ProfileRecord]:
    """Return the records in a folder's *.json, sorted by the files' names.

    Raises UserError for a file that is no record.
    """
    return [read_json(path, ProfileRecord) for path in sorted(folder.glob("*.json"))]
