"""check_bf16_inputs: refuse what the bf16 kernels were not written for, before anything is
launched.
"""

import torch

from .check_tensors import check_rank, check_tensors

_ORDER = (
    "hidden_states",
    "expert_ids",
    "expert_weights",
    "gemm1_weights",
    "gemm2_weights",
    "output",
)


def check_bf16_inputs(tensors):
    """Check one call of the layer. Runs inside the timed region, hence the plain straight code.

    Expert ids are not looked at: that would wait for the device.

    Args:
        tensors: the definition's five inputs in its order, then `output`.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not
            what the definition says; the message names the argument, what it got and what it wants.
    """
    for at, rank in ((1, 2), (3, 3)):
        check_rank(_ORDER[at], tensors[at], rank)
    seq_len, top_k = tensors[1].shape
    experts, gemm1_out, hidden = tensors[3].shape
    inter = gemm1_out // 2
    for name, value, block in (("hidden_size", hidden, 256), ("intermediate_size", inter, 128)):
        if value == 0 or value % block or gemm1_out % 2:
            raise ValueError(f"gemm1_weights: {name} is {value}, want a multiple of {block}")
    if experts < 8 or experts & (experts - 1):
        raise ValueError(
            f"gemm1_weights: num_experts is {experts}, want a power of two of at least 8"
        )
    if not 1 <= top_k <= experts:
        raise ValueError(
            f"expert_ids: top_k is {top_k}, want 1 to {experts}, the number of experts"
        )

    bf16, int32, fp32 = (torch.bfloat16,), (torch.int32,), (torch.float32,)
    shapes = (
        ((seq_len, hidden), bf16),
        ((seq_len, top_k), int32),
        ((seq_len, top_k), fp32),
        ((experts, 2 * inter, hidden), bf16),
        ((experts, hidden, inter), bf16),
        ((seq_len, hidden), bf16),
    )
    wanted = (
        (name, tensor, *want) for name, tensor, want in zip(_ORDER, tensors, shapes, strict=True)
    )
    check_tensors(wanted, like=("expert_ids", tensors[1]))
