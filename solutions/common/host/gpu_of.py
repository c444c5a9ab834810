"""gpu_of: what host code chooses tiles by. No GPU is asked twice."""

from functools import lru_cache
from typing import NamedTuple

import torch


class Gpu(NamedTuple):
    architecture: str  # "sm_90"
    name: str  # as CUDA has it
    multiprocessors: int


@lru_cache
def gpu_of(device):
    """The `Gpu` that a torch.device is; a CPU stands in for a small sm_90 in the interpreter."""
    if device.type == "cpu":
        return Gpu("sm_90", "cpu", 4)
    properties = torch.cuda.get_device_properties(device)
    return Gpu(
        f"sm_{properties.major}{properties.minor}",
        properties.name,
        properties.multi_processor_count,
    )
