"""swiglu_quant_rows: the shared swiglu_quant (with its plain statement) of rows where DeepGEMM's GEMMs have them.

Map of the kernel: programs stride over pairs, one or a token's at a time, and skip those without a row; padding rows
are never touched. Scales are stored as DeepGEMM loads them by TMA: neighbouring rows are neighbours. A program takes up
to 8 blocks of 128 columns, so amax and scale are reductions inside it. Launched before gemm1 has ended, it waits.
"""

import torch
import triton
import triton.language as tl

from .common.host.problem import INTERMEDIATE_SIZE, TOP_K
from .common.triton.pdl import pdl_wait
from .common.triton.swiglu_quant import swiglu_quant_row
from .pairs import pointers
from .prepare import prepare

BLOCK = 128


@triton.jit(do_not_specialize=["num_pairs", "room"])
def swiglu_quant_rows_kernel(
    g_ptr,  # [total, 2 I] bf16
    h_ptr,  # [total, I] fp8, written
    h_scale_ptr,  # [total / room, I / 128, room] fp32, written
    pair_ptr,  # [4, num_pairs] int32
    num_pairs,
    room,
    I: tl.constexpr,  # noqa: E741
    GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,  # at a time
    PDL: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    pdl_wait(PDL)
    _, _, row_ptr, _ = pointers(pair_ptr, num_pairs)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    for first in range(tl.program_id(0) * PAIRS, num_pairs, tl.num_programs(0) * PAIRS):
        for at in range(PAIRS):
            row = tl.load(row_ptr + first + at)
            if row >= 0:
                scale = swiglu_quant_row(g_ptr, h_ptr, row, column, I)
                block = (row // room) * (I // BLOCK) + group
                tl.store(h_scale_ptr + block.to(tl.int64) * room + row % room, scale)


def prepare_swiglu_quant_rows(rows, num_tokens, device):
    """A function start(stream, g, h, h_scale, pairs): activation and quantisation of the rows of pairs.

    g: [..., 2I] bfloat16, `up` columns first; h and h_scale: an operand of depth I (grouped_gemm.py), of which rows of
    no pair stay undefined; pairs: [4, T, TOP_K] int32 (pairs.py), of which rows are read. I is a multiple of 128.
    """
    inter, num_pairs, pdl = INTERMEDIATE_SIZE, num_tokens * TOP_K, device.type != "cpu"
    groups = 8 if inter % (8 * BLOCK) == 0 else 4 if inter % (4 * BLOCK) == 0 else 2 if inter % (2 * BLOCK) == 0 else 1
    programs = 16 * (torch.cuda.get_device_properties(device).multi_processor_count if pdl else 1)  # at most so many
    at_a_time = 1 if num_pairs <= programs else TOP_K
    return prepare(
        swiglu_quant_rows_kernel,
        device,
        (min(num_pairs // at_a_time, programs), inter // (groups * BLOCK), 1),
        (num_pairs, rows.room),
        I=inter,
        GROUPS=groups,
        PAIRS=at_a_time,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )
