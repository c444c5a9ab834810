"""activate: SwiGLU and quantisation of every row, with scales in the order that DeepGEMM reads.

Map of the kernel: as kernels/swiglu_quant.py, but over the list of rows in use, and scales run along rows.
"""

import torch
import triton
import triton.language as tl

from .gather import BLOCK, new_scales


def activate_ref(g):
    """Plain statement of `activate` on rows in use: g [rows, 2I] -> h [rows, I] FP8, h_scale [rows, I / 128]."""
    up, gate = g.float().chunk(2, 1)
    h = (torch.nn.functional.silu(gate) * up).view(len(g), -1, BLOCK)
    amax = h.abs().amax(2)
    scale = torch.where(amax > 0, amax / 448.0, 1.0)
    return (h / scale[:, :, None]).to(torch.float8_e4m3fn).view(len(g), -1), scale


@triton.jit(do_not_specialize=["height"])
def activate_kernel(
    g_ptr,  # [groups * height, 2 I] bf16
    used_row_ptr,  # [num_used] int32
    num_used_ptr,  # [1] int32
    h_ptr,  # [groups * height, I] fp8, written
    h_scale_ptr,  # [groups, I / BLOCK, height] fp32, written
    height,
    I: tl.constexpr,  # noqa: E741
    BLOCKS: tl.constexpr,  # of a program's columns
    BLOCK: tl.constexpr,
):
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    for i in range(tl.program_id(0), tl.load(num_used_ptr), tl.num_programs(0)):
        row = tl.load(used_row_ptr + i)
        g_row = g_ptr + row.to(tl.int64) * (2 * I)
        up = tl.load(g_row + column).to(tl.float32)
        gate = tl.load(g_row + I + column).to(tl.float32)
        h = gate / (1.0 + tl.exp(-gate)) * up
        amax = tl.max(tl.abs(h), 1)
        scale = tl.where(amax > 0, amax / 448.0, 1.0)
        tl.store(h_ptr + row.to(tl.int64) * I + column, (h / scale[:, None]).to(tl.float8e4nv))
        first = (row // height).to(tl.int64) * (I // BLOCK) * height + row % height
        tl.store(h_scale_ptr + first + block.to(tl.int64) * height, scale)


def activate(g, rows, programs):
    """SwiGLU and quantisation.

    Args:
        g: [groups, height, 2I] bfloat16, `up` columns first.
        rows: a `Rows`.
        programs: upper bound on the programs that share the rows.

    Returns:
        h [groups, height, I] float8_e4m3fn; h_scale [groups, height, I / 128] float32, unit stride along height.
        Rows that are not in use are undefined.
    """
    inter = g.shape[2] // 2
    h = torch.empty(rows.groups, rows.height, inter, dtype=torch.float8_e4m3fn, device=g.device)
    h_scale = new_scales(rows, inter, g.device)
    blocks = 8 if inter % (8 * BLOCK) == 0 else 1
    activate_kernel[(min(rows.used_row.shape[0], programs), inter // (blocks * BLOCK))](
        g,
        rows.used_row,
        rows.num_used,
        h,
        h_scale,
        rows.height,
        I=inter,
        BLOCKS=blocks,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return h, h_scale
