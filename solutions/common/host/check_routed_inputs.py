"""check_routed_inputs: refuse what is not the routed definition's, before anything is launched."""

import torch

from .check_inputs import _WEIGHTS
from .check_tensors import check_rank, check_tensors
from .problem import HIDDEN_SIZE, NUM_LOCAL_EXPERTS, TOP_K

_MOST_OFFSET = 2**31 - 1 - NUM_LOCAL_EXPERTS  # ids are int32


def check_routed_inputs(tensors, local_expert_offset):
    """Check one call of the layer behind a router. Runs inside the timed region, hence the plain straight code.

    Args:
        tensors: the definition's input tensors in its order, then `output`. hidden_states may also be bfloat16, with
            None in place of its scales.
        local_expert_offset: int, at least 0.

    Raises:
        ValueError: dtype, rank, size, device, contiguity or 16-byte alignment of an argument is not what the
            definition says; the message names the argument, what it got and what it wants.
    """
    hidden_states, scale, *others = tensors
    check_rank("hidden_states", hidden_states, 2)
    seq_len = hidden_states.shape[0]
    quantised = (("hidden_states_scale", scale, (seq_len, HIDDEN_SIZE // 128), (torch.float32,)),)
    wanted = (
        ("topk_ids", (seq_len, TOP_K), (torch.int32,)),
        ("topk_weights", (seq_len, TOP_K), (torch.float32,)),
        *_WEIGHTS,
        ("output", (seq_len, HIDDEN_SIZE), (torch.bfloat16,)),
    )
    given = (
        (
            "hidden_states",
            hidden_states,
            (seq_len, HIDDEN_SIZE),
            (torch.bfloat16 if scale is None else torch.float8_e4m3fn,),
        ),
        *(() if scale is None else quantised),
        *((name, tensor, *want) for (name, *want), tensor in zip(wanted, others, strict=True)),
    )
    check_tensors(given, like=("hidden_states", hidden_states))
    if type(local_expert_offset) is not int or not 0 <= local_expert_offset <= _MOST_OFFSET:
        raise ValueError(f"local_expert_offset: got {local_expert_offset!r}, want an int, 0 to {_MOST_OFFSET}")
