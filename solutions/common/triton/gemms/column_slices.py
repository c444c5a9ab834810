"""column_slices: into how many slices of columns gemm2's result y is cut.

y has a row for each (token, expert) pair and is the largest scratch of the layer, so gemm2 and
combine run for a slice of its columns at a time (layer.py, and main.py of sglang_triton).
"""

from functools import lru_cache


@lru_cache(maxsize=4096)
def column_slices(rows, hidden, most_bytes=900_000_000):
    """Return the least number of equal slices of which each has at most most_bytes.

    A slice is bf16 [rows, hidden / slices], a multiple of 128 columns wide. If even slices of 128
    columns are larger than most_bytes, their number is returned.
    """
    blocks = hidden // 128
    for slices in range(1, blocks):
        width = hidden // slices
        if blocks % slices == 0 and rows * width * 2 <= most_bytes:
            return slices
    return blocks
