"""check_inputs: refuse what the kernels were not written for, before anything is launched."""

import torch

from .check_tensors import check_rank, check_tensors

_BLOCK = 128
_NUM_GROUPS = 8
_ORDER = (
    "routing_logits",
    "routing_bias",
    "hidden_states",
    "hidden_states_scale",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
    "output",
)


def check_inputs(tensors, local_expert_offset, routed_scaling_factor):
    """Check one call of the layer. Runs inside the timed region, hence the plain straight code.

    Args:
        tensors: the definition's eight input tensors in its order, then `output`.
        local_expert_offset: int, 0 <= offset <= num_experts - num_local_experts.
        routed_scaling_factor: a number.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not what the
            definition says; the message names the argument, what it got and what it wants.
    """
    for at, rank in ((0, 2), (4, 3), (6, 3)):
        check_rank(_ORDER[at], tensors[at], rank)
    seq_len, num_experts = tensors[0].shape
    local, gemm1_out, hidden = tensors[4].shape
    inter = gemm1_out // 2
    for name, value in (("hidden_size", hidden), ("intermediate_size", inter)):
        if value == 0 or value % _BLOCK:
            raise ValueError(f"gemm1_weights: {name} is {value}, want a multiple of {_BLOCK}")
    for at, name, value in ((0, "num_experts", num_experts), (4, "num_local_experts", local)):
        if value < _NUM_GROUPS or value & (value - 1):
            raise ValueError(f"{_ORDER[at]}: {name} is {value}, want a power of two of at least {_NUM_GROUPS}")

    h_blocks, i_blocks = hidden // _BLOCK, inter // _BLOCK
    fp8, fp32, bf16 = (torch.float8_e4m3fn,), (torch.float32,), (torch.bfloat16,)
    shapes = (
        ((seq_len, num_experts), fp32),
        ((num_experts,), bf16),
        ((seq_len, hidden), fp8),
        ((h_blocks, seq_len), fp32),
        ((local, 2 * inter, hidden), fp8),
        ((local, 2 * i_blocks, h_blocks), fp32),
        ((local, hidden, inter), fp8),
        ((local, h_blocks, i_blocks), fp32),
        ((seq_len, hidden), bf16),
    )
    wanted = ((name, tensor, *want) for name, tensor, want in zip(_ORDER, tensors, shapes, strict=True))
    check_tensors(wanted, like=("routing_logits", tensors[0]))
    if not isinstance(local_expert_offset, int) or not 0 <= local_expert_offset <= num_experts - local:
        raise ValueError(f"local_expert_offset: got {local_expert_offset!r}, want an int, 0 to {num_experts - local}")
    if not isinstance(routed_scaling_factor, (int, float)):
        raise ValueError(f"routed_scaling_factor: got {type(routed_scaling_factor).__name__}, want a number")
