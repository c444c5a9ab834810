"""pairs: what is known of each (token, slot) pair, in one tensor.

[4, T, TOP_K] of 32 bits: local expert or -1; routing weight (fp32); row or -1; rank of the row in
its expert.
"""

import triton
import triton.language as tl


@triton.jit
def pointers(pair_ptr, num_pairs):
    """Return pointers to the experts, weights, rows and ranks of all pairs."""
    weight_ptr = (pair_ptr + num_pairs).to(tl.pointer_type(tl.float32), bitcast=True)
    return pair_ptr, weight_ptr, pair_ptr + 2 * num_pairs, pair_ptr + 3 * num_pairs
