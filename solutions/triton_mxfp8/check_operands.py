"""check_operands: refuse what the kernels were not written for, before anything is launched."""

import torch

from .group_quantise import GROUP
from .tiles import BLOCK


def check_operands(x, weight, weight_scale, output):
    """Check one call of the layer. Runs inside the timed region, hence the plain straight code.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not what `linear`
            says; the message names the argument, what it got and what it wants.
    """
    for name, tensor in (("x", x), ("weight", weight)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2:
            raise ValueError(f"{name}: got {_describe(tensor)}, want a tensor of 2 dimensions")
    (rows, k), n = x.shape, weight.shape[0]
    for name, value in (("n", n), ("k", k)):
        if value == 0 or value % BLOCK:
            raise ValueError(f"{'weight' if name == 'n' else 'x'}: {name} is {value}, want a multiple of {BLOCK}")
    want = (
        ("x", x, (rows, k), (torch.bfloat16,)),
        ("weight", weight, (n, k), (torch.float8_e4m3fn,)),
        ("weight_scale", weight_scale, (n, k // GROUP), (torch.int8, torch.uint8)),
        ("output", output, (rows, n), (torch.bfloat16, torch.float16)),
    )
    for name, tensor, shape, dtypes in want:
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.shape != shape
            or tensor.dtype not in dtypes
            or tensor.device != x.device
            or not tensor.is_contiguous()
            or tensor.data_ptr() % 16
        ):
            raise ValueError(f"{name}: {_fault(tensor, shape, dtypes, x.device)}")


def _fault(tensor, shape, dtypes, device):
    """What is wrong with a tensor that something is wrong with."""
    if not isinstance(tensor, torch.Tensor) or tensor.shape != shape or tensor.dtype not in dtypes:
        return f"got {_describe(tensor)}, want {' or '.join(map(str, dtypes))} of shape {list(shape)}"
    if tensor.device != device:
        return f"is on {tensor.device}, want {device} as x"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, want a contiguous tensor"
    return "starts at an address that is not a multiple of 16 bytes"


def _describe(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
