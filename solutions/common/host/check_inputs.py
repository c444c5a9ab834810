"""check_inputs: refuse what is not the definition's, before anything is launched."""

import torch

from .check_tensors import check_rank, check_tensors
from .problem import HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, NUM_LOCAL_EXPERTS, RENORM

_BLOCK = 128
_FP8, _FP32, _BF16 = (torch.float8_e4m3fn,), (torch.float32,), (torch.bfloat16,)
_H_BLOCKS, _I_BLOCKS = HIDDEN_SIZE // _BLOCK, INTERMEDIATE_SIZE // _BLOCK
_WEIGHTS = (
    ("gemm1_weights", (NUM_LOCAL_EXPERTS, 2 * INTERMEDIATE_SIZE, HIDDEN_SIZE), _FP8),
    ("gemm1_weights_scale", (NUM_LOCAL_EXPERTS, 2 * _I_BLOCKS, _H_BLOCKS), _FP32),
    ("gemm2_weights", (NUM_LOCAL_EXPERTS, HIDDEN_SIZE, INTERMEDIATE_SIZE), _FP8),
    ("gemm2_weights_scale", (NUM_LOCAL_EXPERTS, _H_BLOCKS, _I_BLOCKS), _FP32),
)


def check_inputs(tensors, local_expert_offset=0, routed_scaling_factor=1.0):
    """Check one call of the layer. Runs inside the timed region, hence the plain straight code.

    Args:
        tensors: the definition's input tensors in its order (without routing_bias with renorm routing), then `output`.
        local_expert_offset: int, 0 <= offset <= num_experts - num_local_experts.
        routed_scaling_factor: a number.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not what the
            definition says; the message names the argument, what it got and what it wants.
    """
    logits, *others = tensors
    check_rank("routing_logits", logits, 2)
    seq_len = logits.shape[0]
    wanted = (
        ("routing_logits", (seq_len, NUM_EXPERTS), _BF16 if RENORM else _FP32),
        *(() if RENORM else (("routing_bias", (NUM_EXPERTS,), _BF16),)),
        ("hidden_states", (seq_len, HIDDEN_SIZE), _FP8),
        ("hidden_states_scale", (_H_BLOCKS, seq_len), _FP32),
        *_WEIGHTS,
        ("output", (seq_len, HIDDEN_SIZE), _BF16),
    )
    given = ((name, tensor, *want) for (name, *want), tensor in zip(wanted, (logits, *others), strict=True))
    check_tensors(given, like=("routing_logits", logits))
    most = NUM_EXPERTS - NUM_LOCAL_EXPERTS
    if type(local_expert_offset) is not int or not 0 <= local_expert_offset <= most:
        raise ValueError(f"local_expert_offset: got {local_expert_offset!r}, want an int, 0 to {most}")
    if not isinstance(routed_scaling_factor, (int, float)) or isinstance(routed_scaling_factor, bool):
        raise ValueError(f"routed_scaling_factor: got {type(routed_scaling_factor).__name__}, want a number")
