"""check_tensors: refuse tensors that kernels were not written for, before anything is launched.

The argument checks arguments.py, check_bf16_inputs.py and triton_mxfp8's are written with it. They
are timed with the call, hence the straight code.
"""

import torch


def check_rank(name, value, rank):
    """Raise ValueError unless value is a tensor of `rank` dimensions. name: the argument's."""
    if not isinstance(value, torch.Tensor) or value.dim() != rank:
        got = _describe(value)
        raise ValueError(f"{name}: got {got}, want a tensor of {rank} dimensions")


def check_tensors(wanted, like):
    """Raise ValueError for the first tensor that is not as it is wanted.

    Args:
        wanted: for each argument its name, its value, the shape and a tuple of the dtypes that it
            may have.
        like: name and value of an argument whose device all others have to be on.

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
            fault = _fault(tensor, shape, dtypes, device, like[0])
            raise ValueError(f"{name}: {fault}")


def _fault(tensor, shape, dtypes, device, like):
    """Return what is wrong with a tensor, as text. like: the name of the argument on `device`."""
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.shape != shape
        or tensor.dtype not in dtypes
    ):
        got = _describe(tensor)
        allowed = " or ".join(map(str, dtypes))
        return f"got {got}, want {allowed} of shape {list(shape)}"
    if tensor.device != device:
        return f"is on {tensor.device}, want {device} as {like}"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, want a contiguous tensor"
    return "starts at an address that is not a multiple of 16 bytes"


def _describe(value):
    """Return a text: dtype and shape of a tensor, or the type of anything else."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
