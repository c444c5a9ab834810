"""Whether the tensors of workloads fit into a GPU's memory."""

from flashinfer_bench import Definition, Workload

from moebench.judging.calling import input_bytes
from moebench.judging.device import Device
from moebench.operators.workloads import LabelledWorkload

# bytes of two CUDA contexts, their code and libraries' workspaces; a guess
CONTEXTS = 2_000_000_000


def size_of_inputs(definition: Definition, workload: Workload) -> int:
    """Return the bytes of the tensors among one trial's inputs."""
    return sum(input_bytes(definition, workload.axes).values())


def too_large(definition: Definition, workload: Workload, device: Device) -> str | None:
    """Return why a workload does not fit into a GPU's memory, or None."""
    if not device.on_gpu:
        return None

    needed = 2 * size_of_inputs(definition, workload) + CONTEXTS
    if needed <= device.free:
        return None
    return (
        f"needs {needed / 1e9:.1f} GB of GPU memory for its inputs and FIB's clone, "
        f"{device.free / 1e9:.1f} GB are free"
    )


def needs_renewal(
    definition: Definition, workloads: list[LabelledWorkload], num_trials: int, device: Device
) -> bool:
    """Whether one worker process for all workloads would run out of GPU memory.

    All trials lie here and in the worker, there twice again between two solutions; add clones and
    the reference's temporaries.
    """
    if not device.on_gpu:
        return False
    largest = max(size_of_inputs(definition, labelled.workload) for labelled in workloads)
    return (4 * num_trials + 3) * largest + CONTEXTS > device.free
