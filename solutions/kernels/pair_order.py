"""pair_order: the other order in which h may lie: row token * TOP_K + slot, as the routing names its pairs.

In expert order a tile's rows lie together and TMA can read them, but whoever wrote them had to know gemm2's padding.
In pair order they are gathered by index, and pairs of other ranks leave holes that nobody writes or reads.
"""

import triton
import triton.language as tl


@triton.jit
def pair_of_row(row, token, row_of_pair_ptr, TOP_K: tl.constexpr):
    """The pair, token * TOP_K + slot, of each row [N] int32; -1 for a padding row, whose token is negative."""
    slot = tl.arange(0, triton.next_power_of_2(TOP_K))[None, :]
    pair = token[:, None] * TOP_K + slot
    exists = (token >= 0)[:, None] & (slot < TOP_K)
    mine = tl.load(row_of_pair_ptr + pair, mask=exists, other=-1) == row[:, None]
    return tl.max(tl.where(mine, pair, -1), 1)
