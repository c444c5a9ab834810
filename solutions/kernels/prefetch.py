"""prefetch: ask for rows of a matrix to be brought into L2, without waiting for them.

While the host prepares the next launch, or the last tiles of a product are computed, the memory would idle.
"""

import triton
import triton.language as tl

MAX_LINES = 8  # of 128 bytes, of a row


def lines_of(columns):
    """How many lines of a bf16 row of `columns` to ask for: a power of two, at most MAX_LINES, within the row."""
    return min(MAX_LINES, 1 << ((columns // 64).bit_length() - 1))


@triton.jit
def prefetch_rows(matrix_ptr, first_row, COLUMNS: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr):
    """Rows first_row .. first_row + ROWS of a [., COLUMNS] bf16 matrix, the first LINES * 128 bytes of each.

    ROWS and LINES are powers of two. Not for the interpreter, which knows no assembly.
    """
    row = (first_row + tl.arange(0, ROWS)).to(tl.int64)
    address = matrix_ptr + row[:, None] * COLUMNS + tl.arange(0, LINES)[None, :] * 64
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )
