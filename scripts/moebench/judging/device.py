"""The device that solutions run on, and whether a workload, or all of a run one after another, fit
into its memory. planning.py asks, before anything runs.
"""

from dataclasses import dataclass

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.utils import env_snapshot

from moebench.judging.calling import input_bytes
from moebench.operators.workloads import LabelledWorkload
from moebench.packing import eligibility

# A guess of what two processes take of a GPU before their first tensor: CUDA contexts, code,
# workspaces of libraries
CONTEXT_BYTES = 2_000_000_000


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
    return Device(snapshot.hardware, eligibility.target_here(), free)


def size_of_inputs(definition: Definition, workload: Workload) -> int:
    """Return the bytes of the tensors among one trial's inputs."""
    return sum(input_bytes(definition, workload.axes).values())


def too_large(definition: Definition, workload: Workload, device: Device) -> str | None:
    """Return why a workload does not fit into a GPU's memory, or None where it does."""
    if not device.on_gpu:
        return None

    needed = 2 * size_of_inputs(definition, workload) + CONTEXT_BYTES
    if needed <= device.free:
        return None
    return (
        f"needs {needed / 1e9:.1f} GB of GPU memory for its inputs and FIB's clone, "
        f"{device.free / 1e9:.1f} GB are free"
    )


def needs_renewal(
    definition: Definition,
    workloads: list[LabelledWorkload],
    num_trials: int,
    device: Device,
) -> bool:
    """Whether FIB's worker process would run out of GPU memory if it took all workloads.

    The inputs of all trials lie in this process and in the worker, and for a while, between two
    solutions, twice more in the worker: 4 times num_trials. Clones and the reference's temporaries
    take 3 more.
    """
    if not device.on_gpu:
        return False
    sizes = [size_of_inputs(definition, labelled.workload) for labelled in workloads]
    largest = max(sizes)
    return (4 * num_trials + 3) * largest + CONTEXT_BYTES > device.free
