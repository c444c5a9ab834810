"""What solutions run on."""

from dataclasses import dataclass

import torch
from flashinfer_bench.utils import env_snapshot

from moebench.judging.calling import device_here
from moebench.packing import eligibility


@dataclass(frozen=True)
class Device:
    """A device. hardware: its name. target: as in target_hardware. free: bytes of a GPU, else 0."""

    hardware: str
    target: str
    free: int

    @property
    def on_gpu(self) -> bool:
        return self.target != "cpu"


def survey() -> Device:
    """Return the current device of this machine."""
    snapshot = env_snapshot(device_here())
    free = 0
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
    return Device(snapshot.hardware, eligibility.here(), free)
