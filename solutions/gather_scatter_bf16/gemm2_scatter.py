"""gemm2_scatter: h . W2^T for each expert's rows, weighed, and stored where the pair belongs: in token order.

Rows of h are in expert order without padding between experts; a tile that ends behind its expert's last row reads the
next expert's rows, and does not store them.

Map of the kernel: a persistent grid over (row tile, BLOCK_N columns of y); h and the weights both come through TMA.
Below 64 rows the product is W2[BLOCK_N, K] . h[BLOCK_M, K]^T, from 64 on h . W2^T. The epilogue multiplies each row
with its routing weight in fp32 and scatters whole row pieces.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .common.triton.tile_order import tile_order


def gemm2_scatter_ref(h, w, weight, rows):
    """Plain statement of `gemm2_scatter`; rows is a `Permutation` without padding."""
    y = torch.zeros(h.shape[0], w.shape[1], dtype=torch.bfloat16, device=h.device)
    for tile, expert in enumerate(rows.tile_expert[: int(rows.num_tiles)].tolist()):
        first, end = rows.tile_rows[tile].tolist()
        pairs = rows.pair_of_row[first:end].long()
        product = h[first:end].float() @ w[expert].float().t()
        y[pairs] = (product * weight.flatten()[pairs, None]).bfloat16()
    return y


@triton.jit
def gemm2_scatter_kernel(
    h_desc,  # [T * TOP_K, I] bf16, block [BLOCK_M, BLOCK_K]
    w_desc,  # [E * H, I] bf16, block [BLOCK_N, BLOCK_K]
    weight_ptr,  # [T * TOP_K] fp32
    pair_of_row_ptr,  # [T * TOP_K] int32
    tile_expert_ptr,  # [max_tiles] int32
    tile_rows_ptr,  # [max_tiles, 2] int32
    num_tiles_ptr,  # [1] int32
    y_ptr,  # [T * TOP_K, H] bf16, written
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
        first = tl.load(tile_rows_ptr + 2 * m)
        row = first + tl.arange(0, BLOCK_M)
        live = row < tl.load(tile_rows_ptr + 2 * m + 1)
        w_row = expert * H + n * BLOCK_N
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)

        if ROWS_FIRST:
            y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        else:
            y = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, I, BLOCK_K):
            h = h_desc.load([first, k])
            w = w_desc.load([w_row, k])
            if ROWS_FIRST:
                y = tl.dot(h, w.T, y)
            else:
                y = tl.dot(w, h.T, y)

        pair = tl.load(pair_of_row_ptr + row, mask=live, other=0)
        weight = tl.load(weight_ptr + pair, mask=live, other=0.0)
        y_row = y_ptr + pair.to(tl.int64) * H
        if ROWS_FIRST:
            tl.store(y_row[:, None] + column[None, :], (y * weight[:, None]).to(tl.bfloat16), mask=live[:, None])
        else:
            tl.store(y_row[None, :] + column[:, None], (y * weight[None, :]).to(tl.bfloat16), mask=live[None, :])


def gemm2_scatter(h, w, weight, rows, tile):
    """Second grouped product, weighed, in token order.

    Args:
        h: [T * top_k, I] bfloat16 in expert order; w: [E, H, I] bfloat16.
        weight: [T, top_k] float32.
        rows: `permute`'s result for tile.block_m, without padding.
        tile: block_m, block_n, block_k, group, programs, num_warps, num_stages (see tiles.py).

    Returns:
        y [T * top_k, H] bfloat16: weight * (h . W2^T), a token's top_k rows together.
    """
    num_experts, hidden, inter = w.shape
    y = torch.empty(h.shape[0], hidden, dtype=torch.bfloat16, device=h.device)
    work = rows.tile_expert.shape[0] * (hidden // tile.block_n)
    gemm2_scatter_kernel[(min(work, tile.programs),)](
        TensorDescriptor(h, list(h.shape), [inter, 1], [tile.block_m, tile.block_k]),
        TensorDescriptor(w, [num_experts * hidden, inter], [inter, 1], [tile.block_n, tile.block_k]),
        weight,
        rows.pair_of_row,
        rows.tile_expert,
        rows.tile_rows,
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
