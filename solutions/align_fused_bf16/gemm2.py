"""gemm2: h . W2^T for each expert's rows, each row weighed, in expert order.

Every expert's rows start at a tile boundary, so both operands are plain blocks of a matrix and both come through TMA.

Map of the kernel: a persistent grid over (row tile, BLOCK_N columns of y). Below 64 rows the product is
W2[BLOCK_N, K] . h[BLOCK_M, K]^T, from 64 on h . W2^T. The epilogue multiplies with the rows' routing weights in fp32.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .common.triton.tile_order import tile_order


def gemm2_ref(h, w, weight, rows, block_m):
    """Plain statement of `gemm2`; rows is a padded `Permutation`. Padding and undefined rows are left zero."""
    y = torch.zeros(h.shape[0], w.shape[1], dtype=torch.bfloat16, device=h.device)
    for tile, expert in enumerate(rows.tile_expert[: int(rows.num_tiles)].tolist()):
        row = torch.arange(tile * block_m, (tile + 1) * block_m, device=h.device)
        row = row[rows.pair_of_row[row] >= 0]
        product = h[row].float() @ w[expert].float().t()
        y[row] = (product * weight.flatten()[rows.pair_of_row[row].long(), None]).bfloat16()
    return y


@triton.jit
def gemm2_kernel(
    h_desc,  # [max_rows, I] bf16, block [BLOCK_M, BLOCK_K]
    w_desc,  # [E * H, I] bf16, block [BLOCK_N, BLOCK_K]
    weight_ptr,  # [T * TOP_K] fp32
    pair_of_row_ptr,  # [max_rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # one int32
    y_ptr,  # [max_rows, H] bf16, written
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    NUM_N: tl.constexpr = H // BLOCK_N
    ROWS_FIRST: tl.constexpr = BLOCK_M >= 64
    num_m = tl.load(num_tiles_ptr)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        w_row = expert * H + n * BLOCK_N
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)

        if ROWS_FIRST:
            y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        else:
            y = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, I, BLOCK_K):
            h = h_desc.load([m * BLOCK_M, k])
            w = w_desc.load([w_row, k])
            if ROWS_FIRST:
                y = tl.dot(h, w.T, y)
            else:
                y = tl.dot(w, h.T, y)

        pair = tl.load(pair_of_row_ptr + row)
        weight = tl.load(weight_ptr + pair, mask=pair >= 0, other=0.0)
        y_row = y_ptr + row.to(tl.int64) * H
        if ROWS_FIRST:
            tl.store(y_row[:, None] + column[None, :], (y * weight[:, None]).to(tl.bfloat16))
        else:
            tl.store(y_row[None, :] + column[:, None], (y * weight[None, :]).to(tl.bfloat16))


def gemm2(h, w, weight, rows, tile):
    """Second grouped product, weighed.

    Args:
        h: [rows, I] bfloat16 in expert order; w: [E, H, I] bfloat16.
        weight: [T, top_k] float32.
        rows: `permute`'s result for tile.block_m, padded.
        tile: block_m, block_n, block_k, group, programs, num_warps, num_stages (see tiles.py).

    Returns:
        y [rows, H] bfloat16 in expert order; rows of unused tiles are undefined.
    """
    num_experts, hidden, inter = w.shape
    y = torch.empty(h.shape[0], hidden, dtype=torch.bfloat16, device=h.device)
    work = rows.tile_expert.shape[0] * (hidden // tile.block_n)
    gemm2_kernel[(min(work, tile.programs),)](
        TensorDescriptor(h, list(h.shape), [inter, 1], [tile.block_m, tile.block_k]),
        TensorDescriptor(w, [num_experts * hidden, inter], [inter, 1], [tile.block_n, tile.block_k]),
        weight,
        rows.pair_of_row,
        rows.tile_expert,
        rows.num_tiles,
        y,
        H=hidden,
        I=inter,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return y
