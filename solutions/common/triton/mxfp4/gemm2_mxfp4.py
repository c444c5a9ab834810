"""gemm2_mxfp4: the second grouped GEMM with MXFP4 weights, y = h . W2^T in bf16, in expert order.

layer_mxfp4.py calls it.

Map of the kernel: a persistent grid over (row tile, 128 columns of y), the rest as gemm1_mxfp4.py:
weights dequantised to bf16, two products a K step, h's scales applied every 128 of K.
"""

import torch
import triton
import triton.language as tl

from ..gemms.tile_order import tile_order
from ..rows.permute import tiles_ref
from .weights import BLOCK, dequantised_ref, weight_tile


@triton.jit
def gemm2_mxfp4_kernel(
    h_ptr,  # [rows, I] fp8
    h_scale_ptr,  # [rows, I / 128] fp32
    w_ptr,  # [E_LOCAL, H, I / 2] bytes
    w_scale_ptr,  # [E_LOCAL, H, I / 32] bytes
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    y_ptr,  # [rows, num_columns] bf16, written
    first_column,  # of H, which column 0 of y is
    num_columns,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    GROUP: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_K: tl.constexpr = I // BLOCK
    num_m = tl.load(num_tiles_ptr)
    num_n = num_columns // BLOCK
    column = tl.arange(0, BLOCK)
    byte = tl.arange(0, BLOCK // 2)
    for index in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        m, n = tile_order(index, num_m, num_n, GROUP)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        h_ptrs = h_ptr + row[:, None].to(tl.int64) * I + 2 * byte[None, :]
        w_row = tl.load(tile_expert_ptr + m) * H + first_column + n * BLOCK + column
        w_row = w_row[:, None].to(tl.int64)
        w_ptrs = w_ptr + w_row * (I // 2) + byte[None, :]
        w_scale_ptrs = w_scale_ptr + w_row * (I // 32) + byte[None, :] // 16

        y = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            h_even = tl.load(h_ptrs + k * BLOCK)
            h_odd = tl.load(h_ptrs + k * BLOCK + 1)
            h_scale = tl.load(h_scale_ptr + row * NUM_K + k)
            even, odd = weight_tile(
                w_ptrs + k * (BLOCK // 2), w_scale_ptrs + k * (BLOCK // 32)
            )
            products = tl.dot(even, h_even.to(tl.bfloat16).T)
            products = tl.dot(odd, h_odd.to(tl.bfloat16).T, products)
            y += products * h_scale[None, :]

        y_ptrs = (
            y_ptr
            + row[None, :].to(tl.int64) * num_columns
            + n * BLOCK
            + column[:, None]
        )
        tl.store(y_ptrs, y.to(tl.bfloat16))


def gemm2_mxfp4(h, h_scale, w, w_scale, permutation, first_column, y, tile):
    """Write y, y.shape[1] columns of the second grouped GEMM's result from first_column on.

    Args:
        h: [rows, I] float8_e4m3fn; h_scale: [rows, I/128] float32, both in expert order.
        w: [E_local, H, I/2] int8; w_scale: [E_local, H, I/32] int8.
        permutation: `permute`'s result for tile.block_m.
        first_column: a multiple of 128.
        y: [rows, num_columns] bfloat16, written, not yet weighed; num_columns a multiple of 128.
        tile: block_m, group, programs, num_warps, num_stages (see tiles.py).
    """
    num_columns = y.shape[1]
    work = permutation.tile_expert.shape[0] * (num_columns // BLOCK)
    gemm2_mxfp4_kernel[(min(work, tile.programs),)](
        h,
        h_scale,
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
        GROUP=tile.group,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def gemm2_mxfp4_ref(
    h, h_scale, w, w_scale, permutation, block_m, first_column, num_columns
):
    """Compute `gemm2_mxfp4` in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    y = torch.zeros((h.shape[0], num_columns), dtype=torch.bfloat16, device=h.device)
    columns = slice(first_column, first_column + num_columns)
    wide = h.float() * h_scale.repeat_interleave(BLOCK, -1)
    for expert, rows in tiles_ref(permutation, block_m):
        weights = dequantised_ref(w[expert, columns], w_scale[expert, columns])
        y[rows] = (wide[rows] @ weights.t()).bfloat16()
    return y
