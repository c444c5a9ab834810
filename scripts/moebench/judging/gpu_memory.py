"""Whether a workload, and all workloads of a run one after another, fit into a GPU's memory."""

from flashinfer_bench import Definition, Workload

from moebench.judging.calling import input_bytes
from moebench.judging.device import Device
from moebench.operators.workloads import LabelledWorkload

# bytes that two processes take of a GPU before their first tensor: CUDA contexts, code, workspaces
# of libraries; a guess
CONTEXTS = 2_000_000_000


def size_of_inputs(definition: Definition, workload: Workload) -> int:
    """Return the bytes of the tensors among one trial's inputs."""
    return sum(input_bytes(definition, workload.axes).values())


def too_large(definition: Definition, workload: Workload, device: Device) -> str | None:
    """Return why a workload does not fit into a GPU's memory, or None where it does."""
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
    """Whether FIB's worker process would run out of GPU memory if it took all workloads.

    The inputs of all trials lie in this process and in the worker, and for a while, between two
    solutions, twice more in the worker: 4 times num_trials. Clones and the reference's temporaries
    take 3 more.
    """
    if not device.on_gpu:
        return False
    largest = max(size_of_inputs(definition, labelled.workload) for labelled in workloads)
    return (4 * num_trials + 3) * largest + CONTEXTS > device.free
