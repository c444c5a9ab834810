"""pairs: what is known of each (token, slot) pair, in one allocation, as each one costs the host microseconds.

[4, T, TOP_K] of 32 bits: local expert or -1; routing weight (fp32); row or -1; rank of the row in its expert.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from .common.host.problem import TOP_K


def pairs_of(num_tokens, device):
    """A function that allocates [4, T, TOP_K] int32."""
    return partial(torch.empty, 4, num_tokens, TOP_K, dtype=torch.int32, device=device)


@triton.jit
def pointers(pair_ptr, num_pairs):
    """To the experts, weights, rows and ranks of all pairs."""
    weight_ptr = (pair_ptr + num_pairs).to(tl.pointer_type(tl.float32), bitcast=True)
    return pair_ptr, weight_ptr, pair_ptr + 2 * num_pairs, pair_ptr + 3 * num_pairs
