"""gemm2_fp16: the second grouped GEMM, y = h . W2^T in bf16, in expert order, by fp16 tensor cores.

many_tokens.py takes it after gemm1_swiglu_fp16, whose h is fp16 with scales. Weights come through
asynchronous copies as FP8 and become fp16 in registers. Each step's products are multiplied with
the scales of h and of the weights, and added in fp32.

Map of the kernel: a persistent grid over (row tile, 128 columns of y); the MMAs are W2[128, K] .
h[BLOCK_M, K]^T.
"""

import torch
import triton
import triton.language as tl

from ...common.triton.gemms.gemm2 import gemm2_ref
from ...common.triton.gemms.tile_order import tile_order
from .fp8_to_fp16 import UNPACKED_SCALE, fp8_to_fp16

BLOCK = 128


@triton.jit
def gemm2_fp16_kernel(
    h_ptr,  # [rows, I] fp16
    h_scale_ptr,  # [rows, I / 128] fp32
    w_ptr,  # [E_LOCAL * H, I] fp8, or as bytes
    w_scale_ptr,  # [E_LOCAL, H / 128, I / 128] fp32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    y_ptr,  # [rows, num_columns] bf16, written
    first_column,  # of H, which column 0 of y is
    num_columns,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,  # K of a step: 128, or less where 128 would spill registers
    GROUP: tl.constexpr,
    SCALE: tl.constexpr,  # factor on weights: UNPACKED_SCALE where they are loaded as bytes, else 1
):
    BLOCK: tl.constexpr = 128
    NUM_K: tl.constexpr = I // BLOCK
    num_m = tl.load(num_tiles_ptr)
    lane = tl.arange(0, BLOCK_K)
    column = tl.arange(0, BLOCK)
    num_n = num_columns // BLOCK
    for index in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        m, n = tile_order(index, num_m, num_n, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        w_row = expert * H + first_column + n * BLOCK
        w_scale_row = w_scale_ptr + w_row // BLOCK * NUM_K
        h_ptrs = h_ptr + row[:, None].to(tl.int64) * I + lane[None, :]
        w_ptrs = w_ptr + w_row.to(tl.int64) * I + column[:, None] * I + lane[None, :]

        y = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        for k in range(I // BLOCK_K):
            block = k * BLOCK_K // BLOCK
            h = tl.load(h_ptrs + k * BLOCK_K).T
            scale = tl.load(h_scale_ptr + row * NUM_K + block) * (
                tl.load(w_scale_row + block) * SCALE
            )
            y += tl.dot(fp8_to_fp16(tl.load(w_ptrs + k * BLOCK_K)), h) * scale[None, :]

        y_ptrs = (
            y_ptr
            + row[None, :].to(tl.int64) * num_columns
            + n * BLOCK
            + column[:, None]
        )
        tl.store(y_ptrs, y.to(tl.bfloat16))


def gemm2_fp16(h, h_scale, w, w_scale, permutation, first_column, y, choice):
    """Write y, y.shape[1] columns of the second grouped GEMM's result from first_column on.

    Args:
        h: [rows, I] float16; h_scale: [rows, I/128] float32.
        w: [E_local, H, I] float8_e4m3fn; w_scale: [E_local, H/128, I/128] float32.
        permutation: `permute`'s result for tile.block_m.
        first_column: a multiple of 128.
        y: [rows, num_columns] bfloat16, written, not yet weighed; num_columns a multiple of 128.
            Rows of unused tiles are not written; padding rows get values that nothing reads.
        choice: an Fp16Choice of choose_tiles.py, of which `gemm2` and `as_bytes` are taken; 128
            columns a tile.
    """
    tile = choice.gemm2
    _, hidden, inter = w.shape
    num_columns = y.shape[1]

    scale = 1.0
    if choice.as_bytes:
        w = w.view(torch.uint8)
        scale = UNPACKED_SCALE
    work = permutation.tile_expert.shape[0] * (num_columns // BLOCK)
    programs = min(work, tile.programs)
    gemm2_fp16_kernel[(programs,)](
        h,
        h_scale,
        w,
        w_scale,
        permutation.tile_expert,
        permutation.num_tiles,
        y,
        first_column,
        num_columns,
        H=hidden,
        I=inter,
        BLOCK_M=tile.block_m,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        SCALE=scale,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


gemm2_fp16_ref = gemm2_ref  # the same: h times its scale, times W2
