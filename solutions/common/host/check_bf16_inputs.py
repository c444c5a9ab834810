"""check_bf16_inputs: the argument check of the bf16 solutions' `run`.

It refuses what their kernels were not written for, before any launch.
"""

import torch

from .check_tensors import check_rank, check_tensors


def check_bf16_inputs(tensors):
    """Check the arguments of a call. This is timed with the call, hence the straight code.

    The values of expert_ids are not read, as that would wait for the device.

    Args:
        tensors: the definition's five inputs in its order, then `output`.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not
            one that these kernels take; the message names the argument, what it got and what it
            wants.
    """
    hidden_states, expert_ids, expert_weights, gemm1_weights, gemm2_weights, output = (
        tensors
    )
    check_rank("expert_ids", expert_ids, 2)
    check_rank("gemm1_weights", gemm1_weights, 3)

    num_tokens, top_k = expert_ids.shape
    experts, gemm1_out, hidden = gemm1_weights.shape
    inter = gemm1_out // 2
    _check_sizes(experts, gemm1_out, hidden, top_k)

    tokens = (num_tokens, hidden)
    pairs = (num_tokens, top_k)
    bf16 = (torch.bfloat16,)
    wanted = (
        ("hidden_states", hidden_states, tokens, bf16),
        ("expert_ids", expert_ids, pairs, (torch.int32,)),
        ("expert_weights", expert_weights, pairs, (torch.float32,)),
        ("gemm1_weights", gemm1_weights, (experts, 2 * inter, hidden), bf16),
        ("gemm2_weights", gemm2_weights, (experts, hidden, inter), bf16),
        ("output", output, tokens, bf16),
    )
    check_tensors(wanted, like=("expert_ids", expert_ids))


def _check_sizes(experts, gemm1_out, hidden, top_k):
    """Raise ValueError for a size that tiles do not divide, a number of experts that is no power of
    two, or a top_k that is out of range.
    """
    inter = gemm1_out // 2
    for name, value, block in (
        ("hidden_size", hidden, 256),
        ("intermediate_size", inter, 128),
    ):
        if value == 0 or value % block or gemm1_out % 2:
            raise ValueError(
                f"gemm1_weights: {name} is {value}, want a multiple of {block}"
            )

    if experts < 8 or experts & (experts - 1):
        want = "a power of two of at least 8"
        raise ValueError(f"gemm1_weights: num_experts is {experts}, want {want}")
    if not 1 <= top_k <= experts:
        want = f"1 to {experts}, the number of experts"
        raise ValueError(f"expert_ids: top_k is {top_k}, want {want}")
