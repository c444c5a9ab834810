"""overflow_gemm: multiply the tiles for which SGLang's kernel was not launched.

SGLang's kernel has a program for each tile. The host knows only the most tiles that there can be,
under expert parallelism several times as many as there are, and a program without a tile still
takes its turn on an SM. So where thousands of programs might have none, grouped_gemm.py launches
SGLang's kernel for twice the expected rows (tiles.py), and then this kernel for the rest. It has
work only if this rank gets more than twice its share of rows, so it is simple and not tuned.

The grid is persistent: programs go through tiles of BLOCK_M rows by 128 columns. Operands come
through pointers, and the loads of num_stages steps of 128 K are in flight. The kernel waits for the
preceding one first (pdl_wait).
"""

import triton
import triton.language as tl

from ..common.host.gpu_of import gpu_of
from ..common.triton.pdl import pdl_wait

BLOCK = 128


@triton.jit(
    do_not_specialize=[
        "first_tile",
        "num_pairs",
        "stride_x_scale_row",
        "stride_x_scale_block",
        "stride_w_scale_expert",
    ]
)
def overflow_gemm_kernel(
    x_ptr,  # [T, K] fp8; [rows, K] with TOP_K 0
    x_scale_ptr,  # fp32, one for each row and 128 columns of x, by the two strides
    w_ptr,  # [E_LOCAL, N, K] fp8, a view
    w_scale_ptr,  # [E_LOCAL, N / 128, K / 128] fp32, a view
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_rows_ptr,  # [1] int32
    out_ptr,  # [rows, N] bf16, written from tile first_tile on
    first_tile,
    num_pairs,
    stride_x_scale_row,
    stride_x_scale_block,
    stride_w_expert,
    stride_w_scale_expert,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    pdl_wait(PDL)
    num_tiles = tl.load(num_rows_ptr) // BLOCK_M
    lane = tl.arange(0, BLOCK)
    for index in range(
        tl.program_id(0), (num_tiles - first_tile) * (N // BLOCK), tl.num_programs(0)
    ):
        m = first_tile + index // (N // BLOCK)
        n = index % (N // BLOCK)

        expert = tl.load(tile_expert_ptr + m).to(tl.int64)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        here = pair < num_pairs
        x_row = row if TOP_K == 0 else pair // TOP_K
        x_ptrs = x_ptr + x_row.to(tl.int64)[:, None] * K + lane[None, :]
        w_ptrs = (
            w_ptr
            + expert * stride_w_expert
            + (n * BLOCK + lane)[None, :] * K
            + lane[:, None]
        )
        x_scale_ptrs = x_scale_ptr + x_row.to(tl.int64) * stride_x_scale_row
        w_scale_row = w_scale_ptr + expert * stride_w_scale_expert + n * (K // BLOCK)

        out = tl.zeros((BLOCK_M, BLOCK), tl.float32)
        for k in range(K // BLOCK):
            x = tl.load(x_ptrs + k * BLOCK, mask=here[:, None], other=0.0)
            w = tl.load(w_ptrs + k * BLOCK)
            x_scale = tl.load(
                x_scale_ptrs + k * stride_x_scale_block, mask=here, other=0.0
            )
            out += tl.dot(x, w) * (x_scale * tl.load(w_scale_row + k))[:, None]

        column = n * BLOCK + lane
        tl.store(
            out_ptr + row.to(tl.int64)[:, None] * N + column[None, :],
            out.to(tl.bfloat16),
            mask=here[:, None],
        )


def overflow_gemm(
    x,
    x_scale,
    scale_strides,
    weights,
    weights_scale,
    permutation,
    block_m,
    first_tile,
    x_in_order,
    out,
):
    """Write rows of x times their experts' weights into out, for the tiles from first_tile on.

    Args:
        x, x_scale, scale_strides, weights, weights_scale, permutation, x_in_order: those of
            `grouped_gemm` (grouped_gemm.py).
        block_m: rows of a tile of the permutation.
        out: [rows, N] bfloat16; padding rows are not written.
    """
    _, columns, depth = weights.shape
    programs = 2 * gpu_of(x.device).multiprocessors
    overflow_gemm_kernel[(programs,)](
        x,
        x_scale,
        weights,
        weights_scale,
        permutation.pair_of_row,
        permutation.tile_expert,
        permutation.num_rows,
        out,
        first_tile,
        permutation.row_of_pair.numel(),
        *scale_strides,
        weights.stride(0),
        weights_scale.stride(0),
        N=columns,
        K=depth,
        TOP_K=0 if x_in_order else permutation.row_of_pair.shape[1],
        BLOCK_M=block_m,
        PDL=x.device.type != "cpu",
        num_warps=4,
        num_stages=3,
    )
