"""gemm1_bf16: the bf16 layer's first grouped GEMM, x . W13^T, without or with SwiGLU.

align_fused_bf16 and gather_scatter_bf16 call it. Rows, pairs and tiles are those of
rows/permute.py; tokens are gathered by index.

The first half of an expert's rows of W13 is `gate`, the second half `up`. With SwiGLU the kernel
computes both fp32 sums and writes only h; without, it writes g, which has both halves.

The grid is persistent: programs go through tiles of BLOCK_M rows by BLOCK_N columns of the result.
Weights come through TMA. Tokens are gathered with asynchronous copies, and rows that do not exist
read nothing. The loads of num_stages K steps are in flight.

Tensor cores want at least 64 rows of the first operand. Tiles of 64 rows or more are computed as
x . W^T, and the sums lie in registers as the result lies in memory. Smaller ones are computed as
W[BLOCK_N, K] . x[BLOCK_M, K]^T, whose first operand is the weights.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..gemms.tile_order import tile_order
from ..rows.permute import tiles_ref


@triton.jit
def zero_tile(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROWS_FIRST: tl.constexpr):
    """Return fp32 zeros, [BLOCK_M, BLOCK_N] with ROWS_FIRST, else [BLOCK_N, BLOCK_M]."""
    if ROWS_FIRST:
        zeros = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    else:
        zeros = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    return zeros


@triton.jit
def dot(x, w, total, ROWS_FIRST: tl.constexpr):
    """Return total + x [BLOCK_M, K] . w [BLOCK_N, K]^T with ROWS_FIRST, else total + w . x^T."""
    if ROWS_FIRST:
        total = tl.dot(x, w.T, total)
    else:
        total = tl.dot(w, x.T, total)
    return total


@triton.jit
def gemm1_bf16_kernel(
    x_ptr,  # [T, H] bf16
    w_desc,  # [E * N, H] bf16, block [BLOCK_N, BLOCK_K]
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    tile_rows_ptr,  # [max_tiles, 2] int32; None where PADDED
    num_tiles_ptr,  # [1] int32
    out_ptr,  # [rows, N / 2 or N] bf16, written
    H: tl.constexpr,
    N: tl.constexpr,  # 2 I: rows of W13 of an expert
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,  # see gemms/tile_order.py
    PADDED: tl.constexpr,  # whether each expert's rows start at a multiple of BLOCK_M
    SWIGLU: tl.constexpr,
):
    COLUMNS: tl.constexpr = N // 2 if SWIGLU else N
    NUM_N: tl.constexpr = COLUMNS // BLOCK_N
    ROWS_FIRST: tl.constexpr = BLOCK_M >= 64
    N_AXIS: tl.constexpr = 1 if ROWS_FIRST else 0

    num_m = tl.load(num_tiles_ptr)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        if PADDED:
            row = m * BLOCK_M + tl.arange(0, BLOCK_M)
            pair = tl.load(pair_of_row_ptr + row)
            valid = pair >= 0
        else:
            row = tl.load(tile_rows_ptr + 2 * m) + tl.arange(0, BLOCK_M)
            valid = row < tl.load(tile_rows_ptr + 2 * m + 1)
            pair = tl.load(pair_of_row_ptr + row, mask=valid, other=0)

        x_ptrs = (
            x_ptr
            + (pair // TOP_K)[:, None].to(tl.int64) * H
            + tl.arange(0, BLOCK_K)[None, :]
        )
        w_row = expert * N + n * BLOCK_N
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)

        total = zero_tile(BLOCK_M, BLOCK_N, ROWS_FIRST)
        up = zero_tile(BLOCK_M, BLOCK_N, ROWS_FIRST)
        for k in range(0, H, BLOCK_K):
            x = tl.load(x_ptrs + k, mask=valid[:, None], other=0.0)
            w = w_desc.load([w_row, k])
            if SWIGLU:
                up_w = w_desc.load([w_row + COLUMNS, k])
            total = dot(x, w, total, ROWS_FIRST)
            if SWIGLU:
                up = dot(x, up_w, up, ROWS_FIRST)

        if SWIGLU:
            total = (total / (1.0 + tl.exp(-total)) * up).to(tl.bfloat16)

        out_row = out_ptr + row.to(tl.int64) * COLUMNS
        out_ptrs = tl.expand_dims(out_row, N_AXIS) + tl.expand_dims(column, 1 - N_AXIS)
        tl.store(
            out_ptrs,
            total.to(tl.bfloat16),
            mask=None if PADDED else tl.expand_dims(valid, N_AXIS),
        )


def gemm1_bf16(x, w, rows, tile, swiglu):
    """Return the first grouped GEMM's result, or with `swiglu` the activation h of it.

    Args:
        x: [T, H] bfloat16; w: [E, 2I, H] bfloat16, `gate` rows first.
        rows: `permute`'s result for tile.block_m.
        tile: block_m, block_n, block_k, group, programs, num_warps, num_stages (see
            expert_tiles.py).
        swiglu: whether the epilogue applies SwiGLU.

    Returns:
        h [rows, I] with swiglu, else g [rows, 2I], bfloat16, in the order of `rows`. Padding rows
            of used tiles are zero, rows of unused tiles undefined.
    """
    num_experts, columns, hidden = w.shape
    out_columns = columns // 2 if swiglu else columns
    num_rows = rows.pair_of_row.shape[0]
    out = torch.empty(num_rows, out_columns, dtype=torch.bfloat16, device=x.device)

    w_shape = [num_experts * columns, hidden]
    w_desc = TensorDescriptor(w, w_shape, [hidden, 1], [tile.block_n, tile.block_k])
    work = rows.tile_expert.shape[0] * (out_columns // tile.block_n)
    programs = min(work, tile.programs)
    gemm1_bf16_kernel[(programs,)](
        x,
        w_desc,
        rows.pair_of_row,
        rows.tile_expert,
        rows.tile_rows,
        rows.num_tiles,
        out,
        H=hidden,
        N=columns,
        TOP_K=rows.row_of_pair.shape[1],
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        PADDED=rows.tile_rows is None,
        SWIGLU=swiglu,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def gemm1_bf16_ref(x, w, rows, block_m, swiglu):
    """Compute `gemm1_bf16` in plain torch, for tests. Padding and undefined rows are zero."""
    top_k = rows.row_of_pair.shape[1]
    g = torch.zeros(len(rows.pair_of_row), w.shape[1], device=x.device)
    for expert, row in tiles_ref(rows, block_m):
        token = rows.pair_of_row[row].long() // top_k
        weights = w[expert].float()
        g[row] = x[token].float() @ weights.t()
    if not swiglu:
        return g.bfloat16()

    gate, up = g.chunk(2, 1)
    h = torch.nn.functional.silu(gate) * up
    return h.bfloat16()
