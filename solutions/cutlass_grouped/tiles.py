"""tiles: which compiled tile each product uses, by the number of tokens: all that the host knows of the rows."""

from bisect import bisect_left

# Up to this many tokens: the tiles of gemm1 and of gemm2, names from layer.cu. About as many rows are local as there
# are tokens, over 32 experts of uneven popularity, so a tile's rows grow with the tokens.
TABLE = (
    (256, "pingpong_few16", "pingpong_few16"),
    (640, "pingpong_few32", "pingpong_few32"),
    (1536, "pingpong_64_rows", "pingpong_64_rows"),
    (float("inf"), "cooperative_128_rows", "cooperative_128_rows"),
)
_LIMITS = [limit for limit, _, _ in TABLE]


def choose_tiles(num_tokens):
    """The names of gemm1's and gemm2's tile."""
    return TABLE[bisect_left(_LIMITS, num_tokens)][1:]
