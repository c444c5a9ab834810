"""gpu_of: a GPU's architecture, name and number of SMs, by which host code chooses tiles.

They are read once for each device.
"""

from functools import lru_cache
from typing import NamedTuple

import torch


class Gpu(NamedTuple):
    architecture: str  # "sm_90"
    name: str  # as CUDA reports it, "NVIDIA H200"
    multiprocessors: int


@lru_cache
def gpu_of(device):
    """Return the `Gpu` of a torch.device. In the interpreter a CPU stands in for a small sm_90."""
    if device.type == "cpu":
        return Gpu("sm_90", "cpu", 4)

    properties = torch.cuda.get_device_properties(device)
    architecture = f"sm_{properties.major}{properties.minor}"
    return Gpu(architecture, properties.name, properties.multi_processor_count)
