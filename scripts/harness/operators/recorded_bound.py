"""The bound of a recorded workload, from the routing that it was run with."""

from functools import cache
from pathlib import Path

from flashinfer_bench import Workload

from harness.core import paths
from harness.operators import workloads
from harness.operators.catalogue import geometry_of
from harness.operators.roofline import Bound


@cache
def _generated(geometry: str, uuid: str) -> Bound:
    return workloads.maker(geometry).bound(workloads.cases_by_uuid(geometry)[uuid], geometry)


def recorded_bound(definition: str, workload: Workload, root: Path | None) -> Bound | None:
    """The bound of a workload of a data set, or None where its routing cannot be known.

    This repository's routing is generated, so no blob is needed; a trace file outside any data set is taken to
    be of this repository's workloads. Another data set has a routing of its own, in its blobs.
    """
    geometry = geometry_of(definition)
    if geometry is None:
        return None
    if root in (None, paths.ROOT):
        return _generated(geometry, workload.uuid) if workload.uuid in workloads.cases_by_uuid(geometry) else None
    return workloads.maker(geometry).stored_bound(workload, root, geometry)
