"""swiglu_quant_rows: h = swiglu(g) in FP8 with its scales, between the two GEMMs.

It computes what the shared swiglu_quant (common/triton/rows) does, for rows laid out as rows.py
says.

Programs stride over pairs, one at a time or a token's TOP_K, and skip those without a row; padding
rows are never touched. The scales of neighbouring rows are stored adjacent, as DeepGEMM loads them
by TMA. A program has whole blocks of 128 columns, up to 8, so amax and scale are reductions inside
it. g's columns of `up` come first, or those of `gate`, as the weights' rows do. The kernel is
launched before gemm1 has ended, and waits for it (pdl_wait).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from ..common.host import interface
from ..common.host.problem import INTERMEDIATE_SIZE, TOP_K
from ..common.triton.pdl import pdl_wait
from ..common.triton.rows.swiglu_quant import swiglu_and_scale
from .pairs import pointers

BLOCK = 128
GATE_FIRST = tl.constexpr(interface.GATE_FIRST)


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
    PAIRS: tl.constexpr,  # pairs that a program takes at a time
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
                g_row = g_ptr + row.to(tl.int64) * (2 * I)
                up = tl.load(g_row + (I if GATE_FIRST else 0) + column).to(tl.float32)
                gate = tl.load(g_row + (0 if GATE_FIRST else I) + column).to(tl.float32)
                h, scale = swiglu_and_scale(gate, up, 1)
                tl.store(
                    h_ptr + row.to(tl.int64) * I + column,
                    (h / scale[:, None]).to(tl.float8e4nv),
                )
                block = (row // room) * (I // BLOCK) + group
                tl.store(h_scale_ptr + block.to(tl.int64) * room + row % room, scale)


def swiglu_quant_rows(scratch, rows):
    """Write views.h and views.h_scale of a `Scratch` from its views.g.

    Rows without a pair stay undefined. I is a multiple of 128. rows: what `arrange` returned.
    """
    views = scratch.views
    device = views.g.device
    pdl = device.type != "cpu"
    groups = next(
        groups for groups in (8, 4, 2, 1) if INTERMEDIATE_SIZE % (groups * BLOCK) == 0
    )
    column_programs = INTERMEDIATE_SIZE // (groups * BLOCK)

    num_pairs = views.pairs[0].numel()
    most_programs = 16 * (_processors(device) if pdl else 1)
    at_a_time = 1 if num_pairs <= most_programs else TOP_K
    programs = min(num_pairs // at_a_time, most_programs)
    swiglu_quant_rows_kernel[(programs, column_programs)](
        views.g,
        views.h,
        views.h_scale,
        views.pairs,
        num_pairs,
        rows.room,
        I=INTERMEDIATE_SIZE,
        GROUPS=groups,
        PAIRS=at_a_time,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )


@cache
def _processors(device):
    """Return how many SMs a device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count
