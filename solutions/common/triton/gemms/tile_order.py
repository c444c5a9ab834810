"""tile_order: the order in which a persistent grid visits (row tile, column tile) pairs.

`group` row tiles are visited for one column tile before the next column tile begins: the tiles that
run at the same time then share weights (same column, same expert) and rows, and the second reader
finds them in L2.
"""

import triton
import triton.language as tl


@triton.jit
def tile_order(index, num_m, num_n, GROUP: tl.constexpr):
    """Return row tile and column tile of the `index`-th visit, 0 <= index < num_m * num_n."""
    per_group = GROUP * num_n
    first_m = index // per_group * GROUP
    height = tl.minimum(num_m - first_m, GROUP)
    within = index % per_group
    return first_m + within % height, within // height
