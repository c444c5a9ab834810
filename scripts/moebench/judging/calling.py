"""Make inputs, and call with them a solution that FIB has built, or the reference.

Used by judging/isolation/, and by profiling/, served/ and tools, which call solutions themselves.
"""

import hashlib
from collections.abc import Sequence
from math import prod

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.compile import Runnable
from flashinfer_bench.utils import dtype_str_to_torch_dtype

from moebench.judging.fib import allocate_outputs, gen_inputs, normalize_result

CHUNK = 1 << 26  # elements that are drawn at once in fp32, before they become FP8


def seeded_inputs(
    definition: Definition, workload: Workload, trials: int, device: str, stored: dict
) -> list[list]:
    """Return the inputs of each trial, as FIB draws them, in the definition's order.

    The seed is the workload's uuid, so they are the same in every run on one device. stored: name
    -> tensor of the inputs that are not drawn, from the workload's safetensors file.
    """
    digest = hashlib.sha256(workload.uuid.encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big"))
    return [gen_inputs(definition, workload, device, stored) for _ in range(trials)]


def input_bytes(definition: Definition, axes: dict[str, int]) -> dict[str, int]:
    """Return name -> bytes of each tensor among the inputs of one trial."""
    sizes = {}
    shapes = definition.get_input_shapes(axes)
    for (name, spec), shape in zip(definition.inputs.items(), shapes, strict=True):
        if shape:
            sizes[name] = prod(shape) * dtype_str_to_torch_dtype(spec.dtype).itemsize
    return sizes


def random_fp8(
    shape: Sequence[int], device: str, source: torch.Generator
) -> torch.Tensor:
    """Return a float8_e4m3fn tensor, normally distributed.

    It is drawn in parts: drawn in fp32 at once, as FIB does it, the largest layer takes 45 GB.
    """
    tensor = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    for part in tensor.view(-1).split(CHUNK):
        part.copy_(torch.randn(len(part), device=device, generator=source))
    return tensor


def first_tokens(value: object, shape: list[str] | None, num_tokens: int) -> object:
    """Return an input cut to its first tokens, or as it is where no axis is the tokens'.

    shape: the names of its axes; None for a scalar.
    """
    if "seq_len" not in (shape or ()):
        return value
    return value.narrow(shape.index("seq_len"), 0, num_tokens).contiguous()


def with_outputs(
    definition: Definition, runnable: Runnable, inputs: list, device: str
) -> list:
    """Return a runnable's arguments: inputs, and new outputs if it writes into its arguments."""
    if not runnable.metadata.destination_passing_style:
        return inputs
    return inputs + allocate_outputs(definition, inputs, device)


def call(
    definition: Definition, runnable: Runnable, inputs: list, device: str
) -> list[torch.Tensor]:
    """Return the outputs of a call. Where a runnable that writes into its arguments leaves an
    element as it was, the element is NaN, or -1 of an integer output.
    """
    with torch.no_grad():
        if not runnable.metadata.destination_passing_style:
            return normalize_result(definition, runnable(*inputs), device)

        arguments = with_outputs(definition, runnable, inputs, device)
        outputs = arguments[len(inputs) :]
        for output in outputs:
            output.fill_(float("nan") if output.is_floating_point() else -1)
        runnable(*arguments)
        return outputs
