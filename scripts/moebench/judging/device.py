"""The device that solutions run on."""

from dataclasses import dataclass

import torch
from flashinfer_bench.utils import env_snapshot

from moebench.packing import eligibility


@dataclass(frozen=True)
class Device:
    """A device, of this machine or of a node of a cluster.

    hardware: its name, "NVIDIA H200". target: what a solution's target_hardware calls it, "sm_90"
    or "cpu". free: bytes of a GPU's memory that are free, 0 on a CPU.
    """

    hardware: str
    target: str
    free: int

    @property
    def on_gpu(self) -> bool:
        return self.target != "cpu"


def device_here() -> str:
    """Return what torch calls this machine's current device: "cuda:0", or "cpu" without a GPU."""
    if torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def survey() -> Device:
    """Return this machine's current device."""
    snapshot = env_snapshot(device_here())
    free = 0
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
    return Device(snapshot.hardware, eligibility.here(), free)
