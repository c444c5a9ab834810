"""gemm1: x . W13^T for each expert's rows, both halves, gathering tokens by index.

Every expert's rows start at a tile boundary; a padding row reads nothing and yields zeros.

Map of the kernel: a persistent grid over (row tile, BLOCK_N of the 2I columns). Weights come through TMA, tokens are
gathered with asynchronous copies, num_stages K steps are in flight. Below 64 rows the weights are the operand that the
matrix unit wants 64 rows of, W[BLOCK_N, K] . x[BLOCK_M, K]^T, from 64 on the rows are, x . W^T.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .common.triton.tile_order import tile_order


def gemm1_ref(x, w, rows, top_k, block_m):
    """Plain statement of `gemm1`; rows is a padded `Permutation`. Padding and undefined rows are left zero."""
    g = torch.zeros(len(rows.pair_of_row), w.shape[1], dtype=torch.bfloat16, device=x.device)
    for tile, expert in enumerate(rows.tile_expert[: int(rows.num_tiles)].tolist()):
        row = torch.arange(tile * block_m, (tile + 1) * block_m, device=x.device)
        row = row[rows.pair_of_row[row] >= 0]
        g[row] = (x[rows.pair_of_row[row].long() // top_k].float() @ w[expert].float().t()).bfloat16()
    return g


@triton.jit
def gemm1_kernel(
    x_ptr,  # [T, H] bf16
    w_desc,  # [E * N, H] bf16, block [BLOCK_N, BLOCK_K]
    pair_of_row_ptr,  # [max_rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # one int32
    g_ptr,  # [max_rows, N] bf16, written
    H: tl.constexpr,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    NUM_N: tl.constexpr = N // BLOCK_N
    ROWS_FIRST: tl.constexpr = BLOCK_M >= 64
    num_m = tl.load(num_tiles_ptr)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        live = pair >= 0
        x_ptrs = x_ptr + (pair // TOP_K)[:, None].to(tl.int64) * H + tl.arange(0, BLOCK_K)[None, :]
        w_row = expert * N + n * BLOCK_N
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)

        if ROWS_FIRST:
            g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        else:
            g = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, H, BLOCK_K):
            x = tl.load(x_ptrs + k, mask=live[:, None], other=0.0)
            w = w_desc.load([w_row, k])
            if ROWS_FIRST:
                g = tl.dot(x, w.T, g)
            else:
                g = tl.dot(w, x.T, g)

        g_row = g_ptr + row.to(tl.int64) * N
        if ROWS_FIRST:
            tl.store(g_row[:, None] + column[None, :], g.to(tl.bfloat16))
        else:
            tl.store(g_row[None, :] + column[:, None], g.to(tl.bfloat16))


def gemm1(x, w, rows, top_k, tile):
    """First grouped product.

    Args:
        x: [T, H] bfloat16; w: [E, 2I, H] bfloat16, `gate` rows first.
        rows: `permute`'s result for tile.block_m, padded; top_k: experts of a token.
        tile: block_m, block_n, block_k, group, programs, num_warps, num_stages (see tiles.py).

    Returns:
        g [rows, 2I] bfloat16 in expert order. Padding rows of used tiles are zero, rows of unused tiles undefined.
    """
    num_experts, columns, hidden = w.shape
    g = torch.empty(rows.pair_of_row.shape[0], columns, dtype=torch.bfloat16, device=x.device)
    work = rows.tile_expert.shape[0] * (columns // tile.block_n)
    gemm1_kernel[(min(work, tile.programs),)](
        x,
        TensorDescriptor(w, [num_experts * columns, hidden], [hidden, 1], [tile.block_n, tile.block_k]),
        rows.pair_of_row,
        rows.tile_expert,
        rows.num_tiles,
        g,
        H=hidden,
        N=columns,
        TOP_K=top_k,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return g
