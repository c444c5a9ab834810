"""activate: SwiGLU and quantisation of every row, with scales in the order that DeepGEMM reads.

Map of the kernel: as kernels/swiglu_quant.py, but rows are found by their token and scales run along rows.
"""

import torch
import triton
import triton.language as tl

from .gather import BLOCK, new_scales
from .rows import BLOCK_M


def activate_ref(g):
    """Plain statement of `activate` on rows in use: g [rows, 2I] -> h [rows, I] FP8, h_scale [rows, I / 128]."""
    up, gate = g.float().chunk(2, 1)
    h = (torch.nn.functional.silu(gate) * up).view(len(g), -1, BLOCK)
    amax = h.abs().amax(2)
    scale = torch.where(amax > 0, amax / 448.0, 1.0)
    return (h / scale[:, :, None]).to(torch.float8_e4m3fn).view(len(g), -1), scale


@triton.jit(do_not_specialize=["num_rows", "height"])
def activate_kernel(
    g_ptr,  # [num_rows, 2 I] bf16
    token_of_row_ptr,  # [num_rows] int32
    num_tiles_ptr,  # contiguous only: [1] int32
    h_ptr,  # [num_rows, I] fp8, written
    h_scale_ptr,  # [num_rows / height, I / BLOCK, height] fp32, written
    num_rows,
    height,
    I: tl.constexpr,  # noqa: E741
    BLOCKS: tl.constexpr,  # of a program's columns
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CONTIGUOUS: tl.constexpr,
):
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    used_rows = num_rows
    if CONTIGUOUS:
        used_rows = tl.load(num_tiles_ptr) * BLOCK_M
    for row in range(tl.program_id(0), used_rows, tl.num_programs(0)):
        if tl.load(token_of_row_ptr + row) >= 0:
            g_row = g_ptr + tl.cast(row, tl.int64) * (2 * I)
            up = tl.load(g_row + column).to(tl.float32)
            gate = tl.load(g_row + I + column).to(tl.float32)
            h = gate / (1.0 + tl.exp(-gate)) * up
            amax = tl.max(tl.abs(h), 1)
            scale = tl.where(amax > 0, amax / 448.0, 1.0)
            tl.store(h_ptr + tl.cast(row, tl.int64) * I + column, (h / scale[:, None]).to(tl.float8e4nv))
            first = tl.cast(row // height, tl.int64) * (I // BLOCK) * height + row % height
            tl.store(h_scale_ptr + first + block.to(tl.int64) * height, scale)


def activate(g, rows, programs):
    """SwiGLU and quantisation.

    Args:
        g: [groups, height, 2I] bfloat16, `up` columns first.
        rows: a `Rows`.
        programs: upper bound on the programs that share the rows.

    Returns:
        h [groups, height, I] float8_e4m3fn; h_scale [groups, height, I / 128] float32, unit stride along height.
        Rows without a token are undefined.
    """
    inter = g.shape[2] // 2
    num_rows, contiguous = rows.groups * rows.height, rows.num_tiles is not None
    h = torch.empty(rows.groups, rows.height, inter, dtype=torch.float8_e4m3fn, device=g.device)
    h_scale = new_scales(rows, inter, g.device)
    blocks = 8 if inter % (8 * BLOCK) == 0 else 1
    activate_kernel[(min(num_rows, programs), inter // (blocks * BLOCK))](
        g,
        rows.token_of_row,
        rows.num_tiles if contiguous else rows.token_of_row,
        h,
        h_scale,
        num_rows,
        rows.height,
        I=inter,
        BLOCKS=blocks,
        BLOCK=BLOCK,
        BLOCK_M=BLOCK_M,
        CONTIGUOUS=contiguous,
        num_warps=4,
    )
    return h, h_scale
