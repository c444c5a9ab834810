"""gemm2: h . W2^T for each expert's rows, in bf16, rows in expert order.

Rows of one expert lie together and start at a tile boundary, so both operands are plain blocks of a matrix
and both come through TMA; nothing is gathered. Scales are promoted as in gemm1.

Map of the kernel: a persistent grid over (row tile, BLOCK_N columns of y); the product is
W2[BLOCK_N, K] . h[BLOCK_M, K]^T, BLOCK_N <= 128 so that one weight scale serves a tile's K step.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .tile_order import tile_order

BLOCK = 128


def gemm2_ref(h, h_scale, w, w_scale, tile_expert, num_tiles, block_m, first_column, num_columns):
    """Plain statement of `gemm2`; rows beyond the last tile are left zero."""
    y = torch.zeros((h.shape[0], num_columns), dtype=torch.bfloat16, device=h.device)
    wide = lambda s: s.repeat_interleave(BLOCK, -1)  # noqa: E731
    columns = slice(first_column, first_column + num_columns)
    for tile in range(int(num_tiles)):
        e = int(tile_expert[tile])
        rows = slice(tile * block_m, (tile + 1) * block_m)
        dequant_w = w[e].float() * wide(w_scale[e].repeat_interleave(BLOCK, 0))
        y[rows] = (h[rows].float() * wide(h_scale[rows]) @ dequant_w[columns].t()).bfloat16()
    return y


@triton.jit
def gemm2_kernel(
    h_desc,  # [rows, TERMS I] fp8, block [BLOCK_M, 128]
    h_scale_ptr,  # [rows, I / 128] fp32
    w_desc,  # [E_LOCAL * H, I] fp8, block [BLOCK_N, 128]
    w_scale_ptr,  # [E_LOCAL, H / 128, I / 128] fp32
    tile_expert_ptr,
    num_tiles_ptr,
    y_ptr,  # [rows, num_columns] bf16, written
    first_column,
    num_columns,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
    TERMS: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_K: tl.constexpr = I // BLOCK
    num_m = tl.load(num_tiles_ptr)
    num_n = num_columns // BLOCK_N
    for index in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        m, n = tile_order(index, num_m, num_n, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        w_row = expert * H + first_column + n * BLOCK_N
        w_scale_row = w_scale_ptr + w_row // BLOCK * NUM_K

        y = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            h = h_desc.load([m * BLOCK_M, k * BLOCK])
            w = w_desc.load([w_row, k * BLOCK])
            scale = tl.load(h_scale_ptr + row * NUM_K + k) * tl.load(w_scale_row + k)
            product = tl.dot(w, h.T)
            if TERMS == 2:
                product = tl.dot(w, h_desc.load([m * BLOCK_M, I + k * BLOCK]).T, acc=product)
            y += product * scale[None, :]

        column = n * BLOCK_N + tl.arange(0, BLOCK_N)
        y_ptrs = y_ptr + row[None, :].to(tl.int64) * num_columns + column[:, None]
        tl.store(y_ptrs, y.to(tl.bfloat16))


def gemm2(h, h_scale, w, w_scale, permutation, first_column, y, tile):
    """Second grouped product, for y.shape[1] columns of the hidden size from first_column on.

    Args:
        h: [rows, I] float8_e4m3fn, or [rows, 2I] with second terms beside the first; h_scale: [rows, I/128] float32.
        w: [E_local, H, I] float8_e4m3fn; w_scale: [E_local, H/128, I/128] float32.
        permutation: `permute`'s result for tile.block_m.
        first_column: a multiple of 128.
        y: [rows, num_columns] bfloat16, written, not yet weighed; num_columns a multiple of 128. Rows of
            unused tiles are left alone.
        tile: block_m, block_n, group, programs, num_warps, num_stages (see tiles.py).
    """
    num_local_experts, hidden, inter = w.shape
    rows, columns = h.shape
    num_columns = y.shape[1]
    work = permutation.tile_expert.shape[0] * (num_columns // tile.block_n)
    gemm2_kernel[(min(work, tile.programs),)](
        TensorDescriptor(h, [rows, columns], [columns, 1], [tile.block_m, BLOCK]),
        h_scale,
        TensorDescriptor(w, [num_local_experts * hidden, inter], [inter, 1], [tile.block_n, BLOCK]),
        w_scale,
        permutation.tile_expert,
        permutation.num_tiles,
        y,
        first_column,
        num_columns,
        H=hidden,
        I=inter,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        GROUP=tile.group,
        TERMS=columns // inter,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
