"""gather: copy every row's activations to where DeepGEMM reads them.

DeepGEMM wants rows in memory, and their scales with rows running fastest, so that a tile's are one TMA box.

Map of the kernel: a program takes every so-manieth row and copies its 128-column blocks and their scales. In the
contiguous layout it also writes the row's expert, -1 beyond the used tiles, which DeepGEMM skips.
"""

import torch
import triton
import triton.language as tl

from .rows import BLOCK_M

BLOCK = 128


def new_scales(rows, columns, device):
    """Uninitialised [groups, height, columns / 128] float32 with unit stride along `height`, as DeepGEMM wants it."""
    return torch.empty(rows.groups, columns // BLOCK, rows.height, device=device).transpose(1, 2)


def gather_ref(x, x_scale, rows):
    """Plain statement of `gather`: rows without a token hold zeros, which `gather` leaves undefined."""
    token = rows.token_of_row.long()
    if rows.num_tiles is not None:
        token = torch.where(torch.arange(len(token), device=x.device) < rows.num_tiles * BLOCK_M, token, -1)
    has = (token >= 0)[:, None]
    out = torch.where(has, x[token].float(), 0).to(x.dtype).view(rows.groups, rows.height, -1)
    scale = torch.where(has, x_scale.t()[token], 0).view(rows.groups, rows.height, -1)
    return out, scale


@triton.jit(do_not_specialize=["num_rows", "height", "num_tokens"])
def gather_kernel(
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / BLOCK, T] fp32
    token_of_row_ptr,  # [num_rows] int32
    tile_expert_ptr,  # contiguous only: [tiles] int32
    num_tiles_ptr,  # contiguous only: [1] int32
    out_ptr,  # [num_rows, H] fp8, written
    out_scale_ptr,  # [num_rows / height, H / BLOCK, height] fp32, written
    expert_of_row_ptr,  # contiguous only: [num_rows] int32, written
    num_rows,
    height,
    num_tokens,
    H: tl.constexpr,
    BLOCKS: tl.constexpr,  # H / BLOCK, rounded up to a power of two
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CONTIGUOUS: tl.constexpr,
):
    block = tl.arange(0, BLOCKS)
    inside = block < H // BLOCK
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        token = -1
        if CONTIGUOUS:
            used = row < tl.load(num_tiles_ptr) * BLOCK_M
            token = tl.load(token_of_row_ptr + row, mask=used, other=-1)
            tl.store(expert_of_row_ptr + row, tl.load(tile_expert_ptr + row // BLOCK_M, mask=used, other=-1))
        else:
            token = tl.load(token_of_row_ptr + row)
        if token >= 0:
            x = tl.load(x_ptr + token.to(tl.int64) * H + column, mask=inside[:, None], other=0.0)
            tl.store(out_ptr + tl.cast(row, tl.int64) * H + column, x, mask=inside[:, None])
            scale = tl.load(x_scale_ptr + block.to(tl.int64) * num_tokens + token, mask=inside, other=0.0)
            first = tl.cast(row // height, tl.int64) * (H // BLOCK) * height + row % height
            tl.store(out_scale_ptr + first + block.to(tl.int64) * height, scale, mask=inside)


def gather(x, x_scale, rows, programs):
    """Activations of every row.

    Args:
        x: [T, H] float8_e4m3fn; x_scale: [H / 128, T] float32.
        rows: a `Rows`.
        programs: upper bound on the programs that share the rows.

    Returns:
        out [groups, height, H] float8_e4m3fn; scale [groups, height, H / 128] float32, unit stride along height;
        expert_of_row [groups * height] int32 in the contiguous layout, else None. Rows without a token are undefined.
    """
    num_tokens, hidden = x.shape
    num_rows = rows.groups * rows.height
    out = torch.empty(rows.groups, rows.height, hidden, dtype=x.dtype, device=x.device)
    scale = new_scales(rows, hidden, x.device)
    contiguous = rows.num_tiles is not None
    expert_of_row = torch.empty(num_rows, dtype=torch.int32, device=x.device) if contiguous else None
    unused = rows.token_of_row
    gather_kernel[(min(num_rows, programs),)](
        x,
        x_scale,
        rows.token_of_row,
        rows.tile_expert if contiguous else unused,
        rows.num_tiles if contiguous else unused,
        out,
        scale,
        expert_of_row if contiguous else unused,
        num_rows,
        rows.height,
        num_tokens,
        H=hidden,
        BLOCKS=1 << (hidden // BLOCK - 1).bit_length(),
        BLOCK=BLOCK,
        BLOCK_M=BLOCK_M,
        CONTIGUOUS=contiguous,
        num_warps=8,
    )
    return out, scale, expert_of_row
