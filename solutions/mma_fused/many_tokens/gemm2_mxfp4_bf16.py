"""gemm2_mxfp4_bf16: the second grouped GEMM with MXFP4 weights, y = h . W2^T, in expert order.

many_tokens.py calls it after gemm1_swiglu_mxfp4, whose h is bf16 without scales.

The grid is persistent: programs go through tiles of BLOCK_M rows by BLOCK_N columns of y. Weights
are dequantised to bf16 in registers. A byte has the weights of two columns of h, so a step of 128 K
is two products, of the even and of the odd columns.
"""

import torch
import triton
import triton.language as tl

from ...common.triton.gemms.tile_order import tile_order
from ...common.triton.mxfp4.gemm2_mxfp4 import gemm2_mxfp4_ref
from ...common.triton.mxfp4.weights import weight_tile
from .gemm1_swiglu_mxfp4 import even_and_odd

BLOCK = 128


@triton.jit
def gemm2_mxfp4_bf16_kernel(
    h_ptr,  # [rows, I] bf16
    w_ptr,  # [E_LOCAL, H, I / 2] bytes
    w_scale_ptr,  # [E_LOCAL, H, I / 32] bytes
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    y_ptr,  # [rows, num_columns] bf16, written
    first_column,  # the column of the layer's output, of H, that column 0 of y is
    num_columns,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # columns of y
    GROUP: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_K: tl.constexpr = I // BLOCK
    num_m = tl.load(num_tiles_ptr)
    num_n = num_columns // BLOCK_N
    lane = tl.arange(0, BLOCK)
    byte = tl.arange(0, BLOCK // 2)
    column = tl.arange(0, BLOCK_N)

    for index in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        m, n = tile_order(index, num_m, num_n, GROUP)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        h_ptrs = h_ptr + row[:, None].to(tl.int64) * I + lane[None, :]
        w_row = tl.load(tile_expert_ptr + m) * H + first_column + n * BLOCK_N + column
        w_row = w_row[:, None].to(tl.int64)
        w_ptrs = w_ptr + w_row * (I // 2) + byte[None, :]
        w_scale_ptrs = w_scale_ptr + w_row * (I // 32) + byte[None, :] // 16

        y = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            h_even, h_odd = even_and_odd(tl.load(h_ptrs + k * BLOCK))
            even, odd = weight_tile(
                w_ptrs + k * (BLOCK // 2), w_scale_ptrs + k * (BLOCK // 32)
            )
            y = tl.dot(even, h_even.T, y)
            y = tl.dot(odd, h_odd.T, y)

        y_ptrs = (
            y_ptr
            + row[None, :].to(tl.int64) * num_columns
            + n * BLOCK_N
            + column[:, None]
        )
        tl.store(y_ptrs, y.to(tl.bfloat16))


def gemm2_mxfp4_bf16(h, h_scale, w, w_scale, permutation, first_column, y, choice):
    """Write y: columns of the second grouped GEMM's result, as many as y has, from first_column on.

    Args:
        h: [rows, I] bfloat16, in expert order.
        h_scale: None.
        w: [E_local, H, I/2] int8.
        w_scale: [E_local, H, I/32] int8.
        permutation: `permute`'s result for tile.block_m.
        first_column: a multiple of 128.
        y: [rows, num_columns] bfloat16, written, without the routing weights; num_columns is a
            multiple of 128.
        choice: an Fp16Choice of choose_tiles.py, of which `gemm2` is taken.
    """
    tile = choice.gemm2
    num_columns = y.shape[1]
    work = permutation.tile_expert.shape[0] * (num_columns // tile.block_n)
    gemm2_mxfp4_bf16_kernel[(min(work, tile.programs),)](
        h,
        w,
        w_scale,
        permutation.tile_expert,
        permutation.num_tiles,
        y,
        first_column,
        num_columns,
        H=w.shape[1],
        I=h.shape[1],
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        GROUP=tile.group,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def gemm2_mxfp4_bf16_ref(
    h, w, w_scale, permutation, block_m, first_column, num_columns
):
    """Compute `gemm2_mxfp4_bf16` in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    ones = torch.ones(h.shape[0], h.shape[1] // BLOCK, device=h.device)
    return gemm2_mxfp4_ref(
        h, ones, w, w_scale, permutation, block_m, first_column, num_columns
    )
