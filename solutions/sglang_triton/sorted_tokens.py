"""sorted_tokens: `permute`'s order of rows in the form in which SGLang's kernel reads it.

Map of the kernel: one program rewrites 1024 rows; the first also writes the length.
"""

import torch
import triton
import triton.language as tl

CHUNK = 1024


def sorted_tokens_ref(permutation, num_tokens, block_m):
    """Plain statement of `sorted_tokens`; same arguments and results, on any device."""
    token = permutation.token_of_row
    return torch.where(token < 0, num_tokens, token), permutation.num_tiles * block_m


@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def sorted_tokens_kernel(
    token_of_row_ptr,  # [rows] int32
    num_tiles_ptr,  # [1] int32
    sorted_ptr,  # [rows] int32, written
    used_rows_ptr,  # [1] int32, written
    num_rows,
    num_tokens,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    token = tl.load(token_of_row_ptr + row, mask=row < num_rows, other=-1)
    tl.store(sorted_ptr + row, tl.where(token < 0, num_tokens, token), mask=row < num_rows)
    if tl.program_id(0) == 0:
        tl.store(used_rows_ptr, tl.load(num_tiles_ptr) * BLOCK_M)


def sorted_tokens(permutation, num_tokens, block_m):
    """Rows in SGLang's convention.

    Args:
        permutation: `permute`'s result for block_m.
        num_tokens: T.
        block_m: rows of a tile.

    Returns:
        sorted [rows] int32: token of a row, num_tokens for a padding row; rows beyond used_rows are undefined;
        used_rows [1] int32.
    """
    rows = permutation.token_of_row.shape[0]
    sizes = (1, 3, rows)  # every piece starts at a multiple of 16 bytes
    scratch = torch.empty(sum(sizes), dtype=torch.int32, device=permutation.token_of_row.device)
    used_rows, _, order = scratch.split_with_sizes(sizes)
    sorted_tokens_kernel[(-(-rows // CHUNK),)](
        permutation.token_of_row,
        permutation.num_tiles,
        order,
        used_rows,
        rows,
        num_tokens,
        BLOCK_M=block_m,
        CHUNK=CHUNK,
        num_warps=4,
    )
    return order, used_rows
