"""gather: copy every row's activations to where DeepGEMM reads them.

DeepGEMM wants rows in memory, and their scales with rows running fastest, so that a tile's are one TMA box.

Map of the kernel: a program takes every so-manieth row in use and copies its 128-column blocks and their scales.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128


def new_scales(rows, columns, device):
    """Uninitialised [groups, height, columns / 128] float32 with unit stride along `height`, as DeepGEMM wants it."""
    return torch.empty(rows.groups, columns // BLOCK, rows.height, device=device).transpose(1, 2)


def gather_ref(x, x_scale, rows):
    """Plain statement of `gather`: rows that are not in use hold zeros, which `gather` leaves undefined."""
    used, token = (a[: int(rows.num_used)].long() for a in (rows.used_row, rows.used_token))
    out = torch.zeros(rows.groups * rows.height, x.shape[1], dtype=x.dtype, device=x.device)
    scale = torch.zeros(rows.groups * rows.height, x_scale.shape[0], device=x.device)
    out.view(torch.uint8)[used] = x.view(torch.uint8)[token]
    scale[used] = x_scale.t()[token]
    return out.view(rows.groups, rows.height, -1), scale.view(rows.groups, rows.height, -1)


@triton.jit(do_not_specialize=["height", "num_tokens"])
def gather_kernel(
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / BLOCK, T] fp32
    used_row_ptr,  # [num_used] int32
    used_token_ptr,  # [num_used] int32
    num_used_ptr,  # [1] int32
    out_ptr,  # [groups * height, H] fp8, written
    out_scale_ptr,  # [groups, H / BLOCK, height] fp32, written
    height,
    num_tokens,
    H: tl.constexpr,
    BLOCKS: tl.constexpr,  # H / BLOCK, rounded up to a power of two
    BLOCK: tl.constexpr,
):
    block = tl.arange(0, BLOCKS)
    inside = block < H // BLOCK
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    for i in range(tl.program_id(0), tl.load(num_used_ptr), tl.num_programs(0)):
        row = tl.load(used_row_ptr + i)
        token = tl.load(used_token_ptr + i)
        x = tl.load(x_ptr + token.to(tl.int64) * H + column, mask=inside[:, None], other=0.0)
        tl.store(out_ptr + row.to(tl.int64) * H + column, x, mask=inside[:, None])
        scale = tl.load(x_scale_ptr + block.to(tl.int64) * num_tokens + token, mask=inside, other=0.0)
        first = (row // height).to(tl.int64) * (H // BLOCK) * height + row % height
        tl.store(out_scale_ptr + first + block.to(tl.int64) * height, scale, mask=inside)


def gather(x, x_scale, rows, programs):
    """Activations of every row.

    Args:
        x: [T, H] float8_e4m3fn; x_scale: [H / 128, T] float32.
        rows: a `Rows`.
        programs: upper bound on the programs that share the rows.

    Returns:
        out [groups, height, H] float8_e4m3fn; scale [groups, height, H / 128] float32, unit stride along height.
        Rows that are not in use are undefined.
    """
    num_tokens, hidden = x.shape
    out = torch.empty(rows.groups, rows.height, hidden, dtype=x.dtype, device=x.device)
    scale = new_scales(rows, hidden, x.device)
    gather_kernel[(min(rows.used_row.shape[0], programs),)](
        x,
        x_scale,
        rows.used_row,
        rows.used_token,
        rows.num_used,
        out,
        scale,
        rows.height,
        num_tokens,
        H=hidden,
        BLOCKS=1 << (hidden // BLOCK - 1).bit_length(),
        BLOCK=BLOCK,
        num_warps=8,
    )
    return out, scale
