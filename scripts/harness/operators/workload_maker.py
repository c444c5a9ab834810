"""What the harness must know of an operator to make its workloads and to say the least time that each can take."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from flashinfer_bench import Trace, Workload

from harness.operators.roofline import Bound


@dataclass(frozen=True)
class Maker:
    """Of one operator. A case is an object of the operator's own with at least name, uuid, seq_len and label.

    cases: (geometry, definition's name) -> cases in the order in which they are run.
    tensors: (case, geometry) -> what goes into the case's safetensors file.
    record: (case, definition's name) -> the case as a FIB workload trace.
    bound: (case, geometry) -> its bound.
    stored_bound: (workload, root, geometry) -> bound of a workload of the data set at root, from its blobs, or None.
    """

    cases: Callable[[str, str], list]
    tensors: Callable[[object, str], dict[str, torch.Tensor]]
    record: Callable[[object, str], Trace]
    bound: Callable[[object, str], Bound]
    stored_bound: Callable[[Workload, Path, str], Bound | None]
