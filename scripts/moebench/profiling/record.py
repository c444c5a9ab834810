"""What a profile of a solution records, in the format of records/profile/*.json. Times are
microseconds.
"""

from itertools import groupby
from operator import attrgetter
from pathlib import Path

from moebench.core.provenance import Provenance
from moebench.core.schema import Strict, read_json
from moebench.operators.roofline import EARLIER_CEILINGS


class Counters(Strict):
    """One launch under ncu.

    grid: thread blocks; block: threads in one; percent: of the device's peak. None: ncu could not
    tell.
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
    """One kernel in one call.

    stage: `unassigned` where no pattern fits. launches, us: a mean over the calls. counters: of
    each launch in one call, in order; empty where ncu was not asked.
    """

    stage: str
    name: str
    launches: float
    us: float
    counters: list[Counters] = []


class WorkloadProfile(Strict):
    """One solution on one workload, a mean over `calls` calls.

    uuid: or KIND:T for a made-up routing. kernels: by stage, the longest of each stage first.
    wall_us: a call as FIB times it, without a profiler; None where not known. busy_us: the part of
    a call in which at least one of its kernels runs, less than their sum where they overlap.
    bound_us: the roofline bound on an H200. warnings: a line for everything that makes the figures
    doubtful.
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
        """The kernels of each stage, in order."""
        groups = groupby(self.kernels, attrgetter("stage"))
        return {stage: list(kernels) for stage, kernels in groups}

    @property
    def label(self) -> str:
        """'T=57', or 'T=57 uniform' with a made-up routing."""
        kind, is_made_up, _ = self.uuid.partition(":")
        return f"T={self.T} {kind}" if is_made_up else f"T={self.T}"


class ProfileRecord(Strict):
    """One solution on one machine. ceilings: what the bounds divide by, as roofline.CEILINGS."""

    solution: str
    definition: str
    provenance: Provenance
    workloads: list[WorkloadProfile]
    ceilings: dict[str, float] = EARLIER_CEILINGS


def read_records(folder: Path) -> list[ProfileRecord]:
    """Return the records of a folder's *.json, by name of file; [] without any.

    Raises UserError for a file that is no record.
    """
    return [read_json(path, ProfileRecord) for path in sorted(folder.glob("*.json"))]
