"""gemm1_swiglu: x . W13^T for each expert's rows and silu(gate) * up, gathering tokens as it loads, in one kernel.

W13's first half is `gate`, its second half `up`. Rows are in expert order without padding between experts.

Map of the kernel: a persistent grid over (row tile, BLOCK_N columns of h). A K step needs a block of gate rows and one
of up rows of the weights, both through TMA, and BLOCK_M rows of x, gathered by token with asynchronous copies (rows
beyond the expert's end read nothing); num_stages of them are in flight. Below 64 rows the weights are the operand
that the matrix unit wants 64 rows of, W[BLOCK_N, K] . x[BLOCK_M, K]^T, from 64 on the rows are, x . W^T: then the sums
lie in registers as h lies in memory. The activation is taken from the two fp32 sums, which are never written.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .common.triton.tile_order import tile_order


def gemm1_swiglu_ref(x, w, rows, top_k):
    """Plain statement of `gemm1_swiglu`; rows is a `Permutation` without padding."""
    inter = w.shape[1] // 2
    h = torch.zeros(len(rows.pair_of_row), inter, dtype=torch.bfloat16, device=x.device)
    for tile, expert in enumerate(rows.tile_expert[: int(rows.num_tiles)].tolist()):
        first, end = rows.tile_rows[tile].tolist()
        gate, up = (x[rows.pair_of_row[first:end].long() // top_k].float() @ w[expert].float().t()).split(inter, 1)
        h[first:end] = (torch.nn.functional.silu(gate) * up).bfloat16()
    return h


@triton.jit
def gemm1_swiglu_kernel(
    x_ptr,  # [T, H] bf16
    w_desc,  # [E * 2 I, H] bf16, block [BLOCK_N, BLOCK_K]
    pair_of_row_ptr,  # [T * TOP_K] int32
    tile_expert_ptr,  # [max_tiles] int32
    tile_rows_ptr,  # [max_tiles, 2] int32
    num_tiles_ptr,  # [1] int32
    h_ptr,  # [T * TOP_K, I] bf16, written
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    NUM_N: tl.constexpr = I // BLOCK_N
    ROWS_FIRST: tl.constexpr = BLOCK_M >= 64
    num_m = tl.load(num_tiles_ptr)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        row = tl.load(tile_rows_ptr + 2 * m) + tl.arange(0, BLOCK_M)
        live = row < tl.load(tile_rows_ptr + 2 * m + 1)
        token = tl.load(pair_of_row_ptr + row, mask=live, other=0) // TOP_K
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * H + tl.arange(0, BLOCK_K)[None, :]
        gate_row = expert * (2 * I) + n * BLOCK_N
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)

        if ROWS_FIRST:
            gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        else:
            gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, H, BLOCK_K):
            x = tl.load(x_ptrs + k, mask=live[:, None], other=0.0)
            gate_w = w_desc.load([gate_row, k])
            up_w = w_desc.load([gate_row + I, k])
            if ROWS_FIRST:
                gate = tl.dot(x, gate_w.T, gate)
                up = tl.dot(x, up_w.T, up)
            else:
                gate = tl.dot(gate_w, x.T, gate)
                up = tl.dot(up_w, x.T, up)

        h = (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16)
        h_row = h_ptr + row.to(tl.int64) * I
        if ROWS_FIRST:
            tl.store(h_row[:, None] + column[None, :], h, mask=live[:, None])
        else:
            tl.store(h_row[None, :] + column[:, None], h, mask=live[None, :])


def gemm1_swiglu(x, w, rows, top_k, tile):
    """First grouped product and activation.

    Args:
        x: [T, H] bfloat16; w: [E, 2I, H] bfloat16, `gate` rows first.
        rows: `permute`'s result for tile.block_m, without padding; top_k: experts of a token.
        tile: block_m, block_n, block_k, group, programs, num_warps, num_stages (see tiles.py).

    Returns:
        h [T * top_k, I] bfloat16, in expert order.
    """
    num_experts, double_inter, hidden = w.shape
    inter = double_inter // 2
    h = torch.empty(x.shape[0] * top_k, inter, dtype=torch.bfloat16, device=x.device)
    work = rows.tile_expert.shape[0] * (inter // tile.block_n)
    gemm1_swiglu_kernel[(min(work, tile.programs),)](
        x,
        TensorDescriptor(w, [num_experts * double_inter, hidden], [hidden, 1], [tile.block_n, tile.block_k]),
        rows.pair_of_row,
        rows.tile_expert,
        rows.tile_rows,
        rows.num_tiles,
        h,
        H=hidden,
        I=inter,
        TOP_K=top_k,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return h
