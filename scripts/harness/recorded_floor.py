"""The floor of a recorded workload, from the routing that it was run with."""

from functools import cache
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from flashinfer_bench import Workload

from definitions.moe_fp8_block_scale import GEOMETRIES, definition_name
from harness import paths, workloads
from harness.cases import Case, cases
from harness.floor_time import Floor, floor

ROUTING = ("routing_logits", "routing_bias")


def geometry_of(definition: str) -> str | None:
    """The key of GEOMETRIES whose definition has this name, or None."""
    return next((geometry for geometry in GEOMETRIES if definition_name(geometry) == definition), None)


@cache
def _cases(geometry: str) -> dict[str, Case]:
    return {case.uuid: case for case in cases(geometry, definition_name(geometry))}


@cache
def _generated(geometry: str, uuid: str) -> Floor:
    case = _cases(geometry)[uuid]
    return floor(*workloads.routing(case), case.offset, geometry)


def stored_routing(workload: Workload, root: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Logits [T, 256] and bias [256], float32, from the workload's blobs below root; None where one is missing."""
    found = []
    for name in ROUTING:
        spec = workload.inputs.get(name)
        file = root / spec.path if spec is not None and spec.type == "safetensors" else None
        if file is None or not file.is_file():
            return None
        tensor = safetensors.torch.load_file(file).get(spec.tensor_key)
        if tensor is None:
            return None
        found.append(tensor.to(torch.float32).numpy())
    return found[0], found[1]


def recorded_floor(definition: str, workload: Workload, root: Path | None) -> Floor | None:
    """The floor of a workload of a data set, or None where its routing cannot be known.

    This repository's routing is generated, so no blob is needed; a trace file outside any data set is taken to
    be of this repository's workloads. Another data set has a routing of its own, in its blobs.
    """
    geometry = geometry_of(definition)
    if geometry is None:
        return None
    if root in (None, paths.ROOT):
        return _generated(geometry, workload.uuid) if workload.uuid in _cases(geometry) else None
    routing = stored_routing(workload, root)
    offset = workload.inputs.get("local_expert_offset")
    if routing is None or offset is None or offset.type != "scalar":
        return None
    return floor(*routing, int(offset.value), geometry)
