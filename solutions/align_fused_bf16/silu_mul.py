"""silu_mul: h = silu(gate) * up, computed in fp32 and rounded to bf16, between the two GEMMs.

Programs stride over the rows of used tiles, whose number is read on the device. A program takes
BLOCK columns of four rows at a time.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def silu_mul_kernel(
    g_ptr,  # [max_rows, 2 I] bf16
    num_tiles_ptr,  # [1] int32
    h_ptr,  # [max_rows, I] bf16, written
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    ROWS: tl.constexpr = 4
    NUM_N: tl.constexpr = I // BLOCK
    work = tl.load(num_tiles_ptr) * (BLOCK_M // ROWS) * NUM_N
    for index in range(tl.program_id(0), work, tl.num_programs(0)):
        row = (index // NUM_N * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
        column = (index % NUM_N * BLOCK + tl.arange(0, BLOCK))[None, :]
        gate = tl.load(g_ptr + row * (2 * I) + column).to(tl.float32)
        up = tl.load(g_ptr + row * (2 * I) + I + column).to(tl.float32)
        tl.store(
            h_ptr + row * I + column,
            (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16),
        )


def silu_mul(g, rows, block_m, programs):
    """Return the activation h of the rows of used tiles.

    Args:
        g: [rows, 2I] bfloat16, `gate` columns first.
        rows: `permute`'s result for block_m, padded.
        programs: most programs to launch.

    Returns:
        h [rows, I] bfloat16; rows of unused tiles are undefined.
    """
    num_rows, double_inter = g.shape
    inter = double_inter // 2
    h = torch.empty(num_rows, inter, dtype=torch.bfloat16, device=g.device)
    block = 256 if inter % 256 == 0 else 128
    work = rows.tile_expert.shape[0] * (block_m // 4) * (inter // block)
    grid = (min(work, programs),)
    silu_mul_kernel[grid](
        g, rows.num_tiles, h, I=inter, BLOCK_M=block_m, BLOCK=block, num_warps=4
    )
    return h


def silu_mul_ref(g):
    """Compute `silu_mul` in plain torch, for tests."""
    gate, up = g.float().chunk(2, 1)
    h = torch.nn.functional.silu(gate) * up
    return h.bfloat16()
