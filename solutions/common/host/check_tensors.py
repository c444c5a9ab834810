"""check_tensors: refuse tensors that kernels were not written for, before anything is launched.

What calls this runs inside the timed region, hence the plain straight code.
"""

import torch


def check_rank(name, value, rank):
    """Raises ValueError if the argument is not a tensor of so many dimensions."""
    if not isinstance(value, torch.Tensor) or value.dim() != rank:
        raise ValueError(f"{name}: got {_describe(value)}, want a tensor of {rank} dimensions")


def check_tensors(wanted, like):
    """Check tensors of which all else is known.

    Args:
        wanted: for each argument its name, its value, the shape and a tuple of the dtypes that it
            may have.
        like: name and value of a tensor on the device that all have to be on.

    Raises:
        ValueError: shape, dtype, device, contiguity or 16-byte alignment is another; the message
            names the argument, what it got and what it wants.
    """
    device = like[1].device
    for name, tensor, shape, dtypes in wanted:
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.shape != shape
            or tensor.dtype not in dtypes
            or tensor.device != device
            or not tensor.is_contiguous()
            or tensor.data_ptr() % 16
        ):
            raise ValueError(f"{name}: {_fault(tensor, shape, dtypes, device, like[0])}")


def _fault(tensor, shape, dtypes, device, like):
    """What is wrong with a tensor that something is wrong with."""
    if not isinstance(tensor, torch.Tensor) or tensor.shape != shape or tensor.dtype not in dtypes:
        return (
            f"got {_describe(tensor)}, want {' or '.join(map(str, dtypes))} of shape {list(shape)}"
        )
    if tensor.device != device:
        return f"is on {tensor.device}, want {device} as {like}"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, want a contiguous tensor"
    return "starts at an address that is not a multiple of 16 bytes"


def _describe(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
