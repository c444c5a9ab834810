"""check_bf16_inputs: refuse what the bf16 kernels were not written for, before anything is launched."""

import torch

_ORDER = ("hidden_states", "expert_ids", "expert_weights", "gemm1_weights", "gemm2_weights", "output")


def check_bf16_inputs(tensors):
    """Check one call of the layer. Runs inside the timed region, hence the plain straight code.

    Expert ids are not looked at: that would wait for the device.

    Args:
        tensors: the definition's five inputs in its order, then `output`.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not what the
            definition says; the message names the argument, what it got and what it wants.
    """
    for at, rank in ((1, 2), (3, 3)):
        if not isinstance(tensors[at], torch.Tensor) or tensors[at].dim() != rank:
            raise ValueError(f"{_ORDER[at]}: got {_describe(tensors[at])}, want a tensor of {rank} dimensions")
    seq_len, top_k = tensors[1].shape
    experts, gemm1_out, hidden = tensors[3].shape
    inter = gemm1_out // 2
    for name, value, block in (("hidden_size", hidden, 256), ("intermediate_size", inter, 128)):
        if value == 0 or value % block or gemm1_out % 2:
            raise ValueError(f"gemm1_weights: {name} is {value}, want a multiple of {block}")
    if experts < 8 or experts & (experts - 1):
        raise ValueError(f"gemm1_weights: num_experts is {experts}, want a power of two of at least 8")
    if not 1 <= top_k <= experts:
        raise ValueError(f"expert_ids: top_k is {top_k}, want 1 to {experts}, the number of experts")

    bf16 = torch.bfloat16
    want = (
        ((seq_len, hidden), bf16),
        ((seq_len, top_k), torch.int32),
        ((seq_len, top_k), torch.float32),
        ((experts, 2 * inter, hidden), bf16),
        ((experts, hidden, inter), bf16),
        ((seq_len, hidden), bf16),
    )
    device = tensors[1].device
    for name, tensor, (shape, dtype) in zip(_ORDER, tensors, want, strict=True):
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.shape != shape
            or tensor.dtype != dtype
            or tensor.device != device
            or not tensor.is_contiguous()
            or tensor.data_ptr() % 16
        ):
            raise ValueError(f"{name}: {_fault(tensor, shape, dtype, device)}")


def _fault(tensor, shape, dtype, device):
    """What is wrong with a tensor that something is wrong with."""
    if not isinstance(tensor, torch.Tensor) or tensor.shape != shape or tensor.dtype != dtype:
        return f"got {_describe(tensor)}, want {dtype} of shape {list(shape)}"
    if tensor.device != device:
        return f"is on {tensor.device}, want {device} as expert_ids"
    if not tensor.is_contiguous():
        return f"has strides {list(tensor.stride())}, want a contiguous tensor"
    return "starts at an address that is not a multiple of 16 bytes"


def _describe(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
