"""swiglu_quant: h = swiglu(gate, up) in FP8, with one fp32 scale for each row and 128 columns.

layer.py launches it after gemm1; sglang_triton and deepgemm have kernels of the same content for
their own orders of rows.

Map of the kernel: programs stride over the rows that exist (their number is read on the device); a
program takes 8 groups of 128 columns of a row at a time, so amax and scale are reductions inside
the program.
"""

import torch
import triton
import triton.language as tl

from .swiglu import swiglu, swiglu_ref

BLOCK = 128
FP8_MAX = 448.0


@triton.jit
def swiglu_and_scale(gate, up, AXIS: tl.constexpr):
    """Return h = swiglu(gate, up), and each group's scale: amax / 448, or 1 if h is zero.

    gate, up: fp32 tiles with 128 elements along AXIS, which are one group. h has their shape, the
    scales lack AXIS.
    """
    h = swiglu(gate, up)
    amax = tl.max(tl.abs(h), AXIS)
    return h, tl.where(amax > 0, amax / 448.0, 1.0)


@triton.jit
def swiglu_quant_row(g_ptr, h_ptr, row, column, I: tl.constexpr):  # noqa: E741
    """Write columns [groups, 128] of a row of h [rows, I] from g [rows, 2 I].

    Return the scales of the groups.
    """
    g_row = g_ptr + tl.cast(row, tl.int64) * (2 * I)
    up = tl.load(g_row + column).to(tl.float32)
    gate = tl.load(g_row + I + column).to(tl.float32)
    h, scale = swiglu_and_scale(gate, up, 1)
    tl.store(
        h_ptr + tl.cast(row, tl.int64) * I + column,
        (h / scale[:, None]).to(tl.float8e4nv),
    )
    return scale


@triton.jit(do_not_specialize=["num_pairs"])
def swiglu_quant_kernel(
    g_ptr,  # [rows, 2 I] bf16
    h_ptr,  # [rows, I] fp8, written
    h_scale_ptr,  # [rows, I / 128] fp32, written
    num_tiles_ptr,  # [1] int32; read in expert order only
    row_of_pair_ptr,  # [num_pairs] int32; read in pair order only
    num_pairs,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    GROUPS: tl.constexpr,
    EXPERT_ORDER: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    num_rows = num_pairs
    if EXPERT_ORDER:
        num_rows = tl.load(num_tiles_ptr) * BLOCK_M
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        exists = row >= 0
        if not EXPERT_ORDER:
            exists = tl.load(row_of_pair_ptr + row) >= 0
        if exists:
            scale = swiglu_quant_row(g_ptr, h_ptr, row, column, I)
            tl.store(h_scale_ptr + row * (I // BLOCK) + group, scale)


def swiglu_quant(g, permutation, block_m, programs, expert_order=True):
    """Return the quantised activation of the rows of used tiles.

    Args:
        g: [rows, 2I] bfloat16, `up` columns first; I a multiple of 128.
        permutation: `permute`'s result for block_m.
        programs: upper bound on the programs that share the rows.
        expert_order: False where g is in pair order (gemm1.py).

    Returns:
        h [rows, I] float8_e4m3fn, h_scale [rows, I/128] float32. Rows of unused tiles are
            undefined, in pair order those of pairs whose expert is not local.
    """
    rows, double_inter = g.shape
    inter = double_inter // 2
    groups = 8 if inter % (8 * BLOCK) == 0 else 1
    h = torch.empty(rows, inter, dtype=torch.float8_e4m3fn, device=g.device)
    h_scale = torch.empty(rows, inter // BLOCK, dtype=torch.float32, device=g.device)
    grid = (min(rows, programs), inter // (groups * BLOCK))
    swiglu_quant_kernel[grid](
        g,
        h,
        h_scale,
        permutation.num_tiles,
        permutation.row_of_pair,
        permutation.row_of_pair.numel(),
        I=inter,
        BLOCK_M=block_m,
        GROUPS=groups,
        EXPERT_ORDER=expert_order,
        num_warps=4,
    )
    return h, h_scale


def swiglu_quant_ref(g):
    """Compute `swiglu_quant` of all rows of g in plain torch, for tests."""
    up, gate = g.float().chunk(2, dim=-1)
    h = swiglu_ref(gate, up).unflatten(-1, (-1, BLOCK))
    amax = h.abs().amax(-1)
    scale = torch.where(amax > 0, amax / FP8_MAX, 1.0)
    values = (h / scale[..., None]).flatten(-2)
    return values.to(torch.float8_e4m3fn), scale
