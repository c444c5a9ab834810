"""gemm2_bf16: the bf16 layer's second grouped GEMM, h . W2^T times the routing weight.

align_fused_bf16 and gather_scatter_bf16 call it, after gemm1_bf16.

Padded, every expert's rows start at a tile boundary, and y has the rows' order. Without padding, a
tile that ends behind its expert's last row reads the next expert's rows and does not store them,
and y is in token order: row token * TOP_K + slot.

Map of the kernel: a persistent grid over (row tile, BLOCK_N columns of y); h and the weights both
come through TMA. Below 64 rows the MMAs are W2[BLOCK_N, K] . h[BLOCK_M, K]^T, from 64 on h . W2^T.
The epilogue multiplies each row with its routing weight in fp32.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..gemms.tile_order import tile_order
from ..rows.permute import tiles_ref
from .gemm1_bf16 import dot, zero_tile


@triton.jit
def gemm2_bf16_kernel(
    h_desc,  # [rows, I] bf16, block [BLOCK_M, BLOCK_K]
    w_desc,  # [E * H, I] bf16, block [BLOCK_N, BLOCK_K]
    weight_ptr,  # [T * TOP_K] fp32
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    tile_rows_ptr,  # [max_tiles, 2] int32; None where PADDED
    num_tiles_ptr,  # [1] int32
    y_ptr,  # [rows, H] bf16, written
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
):
    NUM_N: tl.constexpr = H // BLOCK_N
    ROWS_FIRST: tl.constexpr = BLOCK_M >= 64
    N_AXIS: tl.constexpr = 1 if ROWS_FIRST else 0
    num_m = tl.load(num_tiles_ptr)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        if PADDED:
            first = m * BLOCK_M
            row = first + tl.arange(0, BLOCK_M)
        else:
            first = tl.load(tile_rows_ptr + 2 * m)
            row = first + tl.arange(0, BLOCK_M)
            valid = row < tl.load(tile_rows_ptr + 2 * m + 1)
        w_row = expert * H + n * BLOCK_N
        column = n * BLOCK_N + tl.arange(0, BLOCK_N)

        y = zero_tile(BLOCK_M, BLOCK_N, ROWS_FIRST)
        for k in range(0, I, BLOCK_K):
            y = dot(h_desc.load([first, k]), w_desc.load([w_row, k]), y, ROWS_FIRST)

        if PADDED:
            pair = tl.load(pair_of_row_ptr + row)
            weight = tl.load(weight_ptr + pair, mask=pair >= 0, other=0.0)
            y_row = y_ptr + row.to(tl.int64) * H
            inside = None
        else:
            pair = tl.load(pair_of_row_ptr + row, mask=valid, other=0)
            weight = tl.load(weight_ptr + pair, mask=valid, other=0.0)
            y_row = y_ptr + pair.to(tl.int64) * H
            inside = tl.expand_dims(valid, N_AXIS)
        y_ptrs = tl.expand_dims(y_row, N_AXIS) + tl.expand_dims(column, 1 - N_AXIS)
        tl.store(
            y_ptrs, (y * tl.expand_dims(weight, N_AXIS)).to(tl.bfloat16), mask=inside
        )


def gemm2_bf16(h, w, weight, rows, tile):
    """Return the second grouped GEMM's result, each row times its routing weight.

    Args:
        h: [rows, I] bfloat16 in expert order; w: [E, H, I] bfloat16.
        weight: [T, top_k] float32.
        rows: `permute`'s result for tile.block_m.
        tile: block_m, block_n, block_k, group, programs, num_warps, num_stages (see
            expert_tiles.py).

    Returns:
        y [rows, H] bfloat16: weight * (h . W2^T). In expert order where rows are padded, rows of
            unused tiles undefined; else in token order, a token's top_k rows together.
    """
    num_experts, hidden, inter = w.shape
    y = torch.empty(h.shape[0], hidden, dtype=torch.bfloat16, device=h.device)

    h_desc = TensorDescriptor(
        h, list(h.shape), [inter, 1], [tile.block_m, tile.block_k]
    )
    w_shape = [num_experts * hidden, inter]
    w_desc = TensorDescriptor(w, w_shape, [inter, 1], [tile.block_n, tile.block_k])
    work = rows.tile_expert.shape[0] * (hidden // tile.block_n)
    programs = min(work, tile.programs)
    gemm2_bf16_kernel[(programs,)](
        h_desc,
        w_desc,
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
        PADDED=rows.tile_rows is None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return y


def gemm2_bf16_ref(h, w, weight, rows, block_m):
    """Compute `gemm2_bf16` in plain torch, for tests. Padding and undefined rows are zero."""
    y = torch.zeros(h.shape[0], w.shape[1], dtype=torch.bfloat16, device=h.device)
    for expert, row in tiles_ref(rows, block_m):
        pair = rows.pair_of_row[row].long()
        weights = w[expert].float()
        product = h[row].float() @ weights.t()
        product *= weight.flatten()[pair, None]
        y[row if rows.tile_rows is None else pair] = product.bfloat16()
    return y
