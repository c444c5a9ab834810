"""tiles: which compiled tile each GEMM uses, by the rows that an expert has on average.

The host does not know how many rows each single expert has.
"""

from bisect import bisect_left

from ..common.host.problem import NUM_EXPERTS, TOP_K

# (largest mean of rows per expert, gemm1's tile, gemm2's tile); a tile is named after its file in
# gemms/. The limits were measured with 8 of 256 experts a token, where they are 256, 640 and 1536
# tokens (NOTES.md).
TABLE = (
    (8, "pingpong_swap_ab_16", "pingpong_swap_ab_16"),
    (20, "pingpong_swap_ab_32", "pingpong_swap_ab_32"),
    (48, "pingpong_64_rows", "pingpong_64_rows"),
    (float("inf"), "cooperative_128_rows", "cooperative_128_rows"),
)
_LIMITS = [limit for limit, _, _ in TABLE]


def choose_tiles(num_tokens):
    """Return the names of gemm1's and gemm2's tile."""
    rows_per_expert = num_tokens * TOP_K / NUM_EXPERTS
    _, gemm1, gemm2 = TABLE[bisect_left(_LIMITS, rows_per_expert)]
    return gemm1, gemm2
