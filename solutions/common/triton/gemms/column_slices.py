"""column_slices: into how many slices of columns gemm2's result is cut.

It has a row for each routed pair and is the largest scratch, so it is made a slice at a time.
"""

from functools import lru_cache


@lru_cache(maxsize=4096)
def column_slices(rows, hidden, most_bytes=900_000_000):
    """Return the least number of equal slices of which each has at most most_bytes in bf16.

    A slice is a multiple of 128 columns wide. Where none fits, there are as many as can be.
    """
    blocks = hidden // 128
    for slices in range(1, blocks):
        width = hidden // slices
        if blocks % slices == 0 and rows * width * 2 <= most_bytes:
            return slices
    return blocks
