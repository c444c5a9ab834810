"""swiglu_quant_rows: h = swiglu(g) in FP8 with its scales, between the two GEMMs.

It computes what the shared swiglu_quant (common/triton/rows) does, but skips padding rows.

Programs stride over rows. Each loads the pair of its next row one step ahead, and skips padding,
whose h stays undefined. A program has whole blocks of 128 columns, up to 8, so amax and scale are
reductions inside it. The kernel is launched before gemm1 has ended, and waits for it (pdl_wait).
"""

import torch
import triton
import triton.language as tl

from ..common.host.gpu_of import gpu_of
from ..common.triton.pdl import pdl_wait
from ..common.triton.rows.swiglu_quant import swiglu_quant_row

BLOCK = 128
PROGRAMS = 8  # the most programs for each multiprocessor and 8 blocks of columns


@triton.jit(do_not_specialize=["num_pairs"])
def swiglu_quant_rows_kernel(
    g_ptr,  # [rows, 2 I] bf16
    h_ptr,  # [rows, I] fp8, written
    h_scale_ptr,  # [rows, I / 128] fp32, written
    pair_of_row_ptr,  # [rows] int32
    num_rows_ptr,  # [1] int32
    num_pairs,
    I: tl.constexpr,  # noqa: E741
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    pdl_wait(PDL)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    num_rows = tl.load(num_rows_ptr)
    pair = tl.load(pair_of_row_ptr + tl.program_id(0))
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        following = row + tl.num_programs(0)
        next_pair = tl.load(
            pair_of_row_ptr + following, mask=following < num_rows, other=num_pairs
        )
        if pair < num_pairs:
            scale = swiglu_quant_row(g_ptr, h_ptr, row, column, I)
            tl.store(h_scale_ptr + row * (I // BLOCK) + group, scale)
        pair = next_pair


def swiglu_quant_rows(g, permutation):
    """Return the quantised activation of the rows that have a pair.

    Args:
        g: [rows, 2I] bfloat16, `up` columns first; I a multiple of 128.
        permutation: `permute`'s result, where the pair of padding rows is the number of pairs.

    Returns:
        h [rows, I] float8_e4m3fn, h_scale [rows, I/128] float32; undefined for rows without a pair.
    """
    rows, double_inter = g.shape
    inter = double_inter // 2
    groups = 8 if inter % (8 * BLOCK) == 0 else 1
    h = torch.empty(rows, inter, dtype=torch.float8_e4m3fn, device=g.device)
    h_scale = torch.empty(rows, inter // BLOCK, dtype=torch.float32, device=g.device)
    most_programs = PROGRAMS * gpu_of(g.device).multiprocessors
    grid = (min(rows, most_programs), inter // (groups * BLOCK))
    swiglu_quant_rows_kernel[grid](
        g,
        h,
        h_scale,
        permutation.pair_of_row,
        permutation.num_rows,
        permutation.row_of_pair.numel(),
        I=inter,
        GROUPS=groups,
        PDL=g.device.type != "cpu",
        num_warps=4,
    )
    return h, h_scale
