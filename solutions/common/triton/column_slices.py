"""column_slices: gemm2's result, a row for each routed pair, is the largest scratch: made a column
slice at a time.
"""

from functools import lru_cache


@lru_cache(maxsize=4096)
def column_slices(rows, hidden, most_bytes=900_000_000):
    """Least number of equal slices, each a multiple of 128 columns wide, of which one in bf16 has
    at most most_bytes; as narrow ones as there are where none fits."""
    blocks = hidden // 128
    fits = (
        n for n in range(1, blocks) if blocks % n == 0 and rows * (hidden // n) * 2 <= most_bytes
    )
    return next(fits, blocks)
