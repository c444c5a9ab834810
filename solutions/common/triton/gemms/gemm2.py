"""gemm2: the FP8 layer's second grouped GEMM, y = h . W2^T in bf16, rows of y in expert order.

layer.py calls it; combine multiplies by the routing weights.

In expert order, rows of one expert lie together and start at a tile boundary. Where h is in that
order too, both operands are plain blocks of a matrix and come through TMA. Where h is in pair order
(gemm1.py explains both orders), its rows are gathered by index, and both operands come through
asynchronous copies. Scales are applied to the sum of every 128 of K, as in gemm1.

gemm2's BLOCK_M may be a fraction of gemm1's, to which rows are padded. A padded tile is then PARTS
tiles here, and those without rows skip their products.

The grid is persistent: programs go through tiles of BLOCK_M rows by BLOCK_N columns of y. The MMAs
are W2[BLOCK_N, K] . h[BLOCK_M, K]^T. BLOCK_N is at most 128, so that a tile has one weight scale in
each step of 128 K.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..rows.permute import tiles_ref
from .gemm1 import by_column, dequantised
from .tile_order import tile_order

BLOCK = 128


@triton.jit
def gemm2_kernel(
    # [rows, I] fp8, block [BLOCK_M, 128]; without TMA a pointer to [T * TOP_K, I] in pair order
    h_desc,
    h_scale_ptr,  # [rows or T * TOP_K, I / 128] fp32
    w_desc,  # [E_LOCAL * H, I] fp8, block [BLOCK_N, 128]; without TMA a pointer
    w_scale_ptr,  # [E_LOCAL, H / 128, I / 128] fp32
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32, of the permutation's tiles
    num_tiles_ptr,  # [1] int32
    y_ptr,  # [rows, num_columns] bf16, written
    first_column,  # the column of the layer's output, of H, that column 0 of y is
    num_columns,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,  # tiles in one tile of the permutation
    TMA: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_K: tl.constexpr = I // BLOCK
    num_m = tl.load(num_tiles_ptr) * PARTS
    lane = tl.arange(0, BLOCK)
    num_n = num_columns // BLOCK_N

    for index in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        m, n = tile_order(index, num_m, num_n, GROUP)
        expert = tl.load(tile_expert_ptr + m // PARTS)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        w_row = expert * H + first_column + n * BLOCK_N
        w_scale_row = w_scale_ptr + w_row // BLOCK * NUM_K

        steps = NUM_K
        # A padded tile's rows come before its padding: a part whose first row is none has none.
        if PARTS > 1:
            steps = tl.where(tl.load(pair_of_row_ptr + m * BLOCK_M) >= 0, NUM_K, 0)

        y = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        if TMA:
            for k in range(steps):
                h = h_desc.load([m * BLOCK_M, k * BLOCK])
                w = w_desc.load([w_row, k * BLOCK])
                scale = tl.load(h_scale_ptr + row * NUM_K + k) * tl.load(
                    w_scale_row + k
                )
                y += tl.dot(w, h.T) * scale[None, :]
        else:
            pair = tl.load(pair_of_row_ptr + row)
            valid = pair >= 0
            h_ptrs = h_desc + pair[:, None].to(tl.int64) * I + lane[None, :]
            w_ptrs = (
                w_desc
                + (w_row + tl.arange(0, BLOCK_N))[:, None].to(tl.int64) * I
                + lane[None, :]
            )
            for k in range(steps):
                h = tl.load(h_ptrs + k * BLOCK, mask=valid[:, None], other=0.0)
                w = tl.load(w_ptrs + k * BLOCK)
                scale = tl.load(
                    h_scale_ptr + pair * NUM_K + k, mask=valid, other=0.0
                ) * tl.load(w_scale_row + k)
                y += tl.dot(w, h.T) * scale[None, :]

        column = n * BLOCK_N + tl.arange(0, BLOCK_N)
        y_ptrs = y_ptr + row[None, :].to(tl.int64) * num_columns + column[:, None]
        tl.store(y_ptrs, y.to(tl.bfloat16))


def gemm2(h, h_scale, w, w_scale, permutation, first_column, y, tile, tma=True):
    """Write y: columns of the second grouped GEMM's result, as many as y has, from first_column on.

    Args:
        h: [rows, I] float8_e4m3fn, without TMA [T * top_k, I] in pair order.
        h_scale: float32, I/128 for each row of h.
        w: [E_local, H, I] float8_e4m3fn.
        w_scale: [E_local, H/128, I/128] float32.
        permutation: `permute`'s result for a multiple of tile.block_m.
        first_column: a multiple of 128.
        y: [rows, num_columns] bfloat16, written, without the routing weights; num_columns is a
            multiple of 128. Rows of unused tiles are left alone.
        tile: block_m, block_n, group, programs, num_warps, num_stages (see tiles.py).
        tma: whether h lies in expert order and both operands come through TMA.

    Raises:
        ValueError: the permutation's tiles are no multiple of tile.block_m.
    """
    num_local_experts, hidden, inter = w.shape
    num_columns = y.shape[1]
    tiles = permutation.tile_expert.shape[0]
    padded_to = permutation.pair_of_row.shape[0] // tiles
    parts, rest = divmod(padded_to, tile.block_m)
    if rest:
        want = f"a divisor of the {padded_to} rows padded to"
        raise ValueError(f"tile.block_m: got {tile.block_m}, want {want}")

    h_operand = h
    w_operand = w
    if tma:
        h_operand = TensorDescriptor(
            h, list(h.shape), [inter, 1], [tile.block_m, BLOCK]
        )
        w_shape = [num_local_experts * hidden, inter]
        w_operand = TensorDescriptor(w, w_shape, [inter, 1], [tile.block_n, BLOCK])
    work = tiles * parts * (num_columns // tile.block_n)
    programs = min(work, tile.programs)
    gemm2_kernel[(programs,)](
        h_operand,
        h_scale,
        w_operand,
        w_scale,
        permutation.pair_of_row,
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
        PARTS=parts,
        TMA=tma,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def gemm2_ref(h, h_scale, w, w_scale, permutation, block_m, first_column, num_columns):
    """Compute `gemm2` in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    y = torch.zeros((h.shape[0], num_columns), dtype=torch.bfloat16, device=h.device)
    columns = slice(first_column, first_column + num_columns)
    for expert, rows in tiles_ref(permutation, block_m):
        dequant_h = h[rows].float() * by_column(h_scale[rows])
        dequant_w = dequantised(w[expert], w_scale[expert])
        product = dequant_h @ dequant_w[columns].t()
        y[rows] = product.bfloat16()
    return y
