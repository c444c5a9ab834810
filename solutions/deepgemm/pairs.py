"""pairs: one tensor with four numbers for each (token, slot) pair, which the Triton kernels share.

[4, T, TOP_K] of 32 bits: the local expert, or -1; the routing weight, in fp32; the row, or -1; the
row's rank among the rows of its expert.
"""

import triton
import triton.language as tl


@triton.jit
def pointers(pair_ptr, num_pairs):
    """Return pointers to the experts, weights (fp32), rows and ranks of all pairs."""
    weight_ptr = (pair_ptr + num_pairs).to(tl.pointer_type(tl.float32), bitcast=True)
    return pair_ptr, weight_ptr, pair_ptr + 2 * num_pairs, pair_ptr + 3 * num_pairs
