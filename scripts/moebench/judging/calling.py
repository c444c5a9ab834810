"""Call a solution that FIB has built, or the reference: inputs, outputs, and the call."""

import hashlib
import re
from collections.abc import Sequence
from math import prod

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.compile import Runnable
from flashinfer_bench.utils import dtype_str_to_torch_dtype

from moebench.judging.fib import allocate_outputs, gen_inputs, normalize_result

CHUNK = 1 << 26  # elements that are drawn at once in fp32, before they become FP8


def device_here() -> str:
    """The current CUDA device, or cpu without one."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def seeded_inputs(
    full: Definition, workload: Workload, trials: int, device: str, stored: dict
) -> list[list]:
    """FIB's inputs for each trial, the same in every run on one device. stored: those that are not
    random, by name.
    """
    torch.manual_seed(int.from_bytes(hashlib.sha256(workload.uuid.encode()).digest()[:8], "big"))
    return [gen_inputs(full, workload, device, stored) for _ in range(trials)]


def input_bytes(full: Definition, axes: dict[str, int]) -> dict[str, int]:
    """Name -> bytes of each tensor among the inputs of one trial."""
    tensors = zip(full.inputs.items(), full.get_input_shapes(axes), strict=True)
    return {
        name: prod(shape) * dtype_str_to_torch_dtype(of.dtype).itemsize
        for (name, of), shape in tensors
        if shape
    }


def random_fp8(shape: Sequence[int], device: str, source: torch.Generator) -> torch.Tensor:
    """E4M3 of a normal distribution, drawn in parts: in fp32 at once, as FIB does it, the largest
    layer takes 45 GB.
    """
    tensor = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    for part in tensor.view(-1).split(CHUNK):
        part.copy_(torch.randn(len(part), device=device, generator=source))
    return tensor


def first_tokens(value: object, shape: list[str] | None, num_tokens: int) -> object:
    """An input without the tokens that follow, if it has any. shape: names of its axes, None of a
    scalar.
    """
    if "seq_len" not in (shape or ()):
        return value
    return value.narrow(shape.index("seq_len"), 0, num_tokens).contiguous()


def first_line(error: BaseException) -> str:
    return shortened(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0])


def shortened(line: str) -> str:
    """Of an error for want of device memory: how much was asked for, and was free."""
    return re.sub(r"(CUDA out of memory\..*? is free\.).*", r"\1", line)


def with_outputs(full: Definition, runnable: Runnable, inputs: list, device: str) -> list:
    """What the runnable is called with: the inputs, and outputs for one that writes into them."""
    return inputs + (
        allocate_outputs(full, inputs, device)
        if runnable.metadata.destination_passing_style
        else []
    )


def call(full: Definition, runnable: Runnable, inputs: list, device: str) -> list[torch.Tensor]:
    """The outputs; NaN, or -1, wherever a destination-passing solution writes nothing."""
    with torch.no_grad():
        if not runnable.metadata.destination_passing_style:
            return normalize_result(full, runnable(*inputs), device)
        arguments = with_outputs(full, runnable, inputs, device)
        for output in arguments[len(inputs) :]:
            output.fill_(float("nan") if output.is_floating_point() else -1)
        runnable(*arguments)
        return arguments[len(inputs) :]
