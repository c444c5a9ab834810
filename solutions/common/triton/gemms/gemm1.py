"""gemm1: the FP8 layer's first grouped GEMM without SwiGLU, g = x . W13^T in bf16.

layer.py calls it, and then swiglu_quant, where the `Choice` of tiles.py is not `fused`. There are
two such cases. Where a tile has many rows, the two accumulators of `gemm1_swiglu_quant` no longer
fit the registers, and it costs less to write g and read it back than to spill. With one or few
tokens, g's column tiles, twice as many as h's, keep more SMs busy.

The rows of g, and of h, are in one of two orders. Expert order is that of rows/permute.py: a tile's
rows are contiguous, so gemm2 can read them by TMA. In pair order a pair has row token * TOP_K +
slot: gemm2 gathers rows by index, there is no padding, and rows of pairs whose expert is on another
rank are neither written nor read.

g has its columns of `up` first, whichever half of W13 is first.

The grid is persistent: programs go through tiles of BLOCK_M rows by 128 columns of g. The MMAs are
W[128, K] . x[BLOCK_M, K]^T. In each step of K the block of weights comes through TMA, and tokens
are gathered with asynchronous copies.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ...host.interface import GATE_FIRST, SCALES_ROW_MAJOR
from ..rows.permute import tiles_ref
from .tile_order import tile_order

BLOCK = 128


@triton.jit
def scales_of_tokens(
    scale_ptr, token, num_tokens, NUM_K: tl.constexpr, ROW_MAJOR: tl.constexpr
):
    """Return pointers to the first scale of each token, and the step from one scale to the next."""
    if ROW_MAJOR:
        first = scale_ptr + token * NUM_K
        step = 1
    else:
        first = scale_ptr + token
        step = num_tokens
    return first, step


@triton.jit(do_not_specialize=["num_tokens"])
def gemm1_kernel(
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32; [T, H / 128] with ROW_MAJOR
    w_desc,  # [E_LOCAL * N, H] fp8, block [128, 128]
    w_scale_ptr,  # [E_LOCAL, N / 128, H / 128] fp32
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    g_ptr,  # [rows, N] bf16, or [T * TOP_K, N] in pair order, written
    num_tokens,
    H: tl.constexpr,
    N: tl.constexpr,  # 2 I: rows of W13 of an expert
    BLOCK_M: tl.constexpr,
    GROUP: tl.constexpr,  # see tile_order.py
    EXPERT_ORDER: tl.constexpr,
    TOP_K: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    ROW_MAJOR: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_N: tl.constexpr = N // BLOCK
    NUM_K: tl.constexpr = H // BLOCK
    num_m = tl.load(num_tiles_ptr)
    lane = tl.arange(0, BLOCK)

    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        w_block = tl.load(tile_expert_ptr + m) * NUM_N + n
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        valid = pair >= 0
        token = pair // TOP_K
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * H + lane[None, :]
        x_scale_ptrs, x_scale_step = scales_of_tokens(
            x_scale_ptr, token, num_tokens, NUM_K, ROW_MAJOR
        )

        g = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            x = tl.load(x_ptrs + k * BLOCK, mask=valid[:, None], other=0.0)
            x_scale = tl.load(x_scale_ptrs + k * x_scale_step, mask=valid, other=0.0)
            w = w_desc.load([w_block * BLOCK, k * BLOCK])
            g += (
                tl.dot(w, x.T)
                * (x_scale * tl.load(w_scale_ptr + w_block * NUM_K + k))[None, :]
            )

        if GATE_FIRST:  # up comes second in W13, and first in g
            n = (n + NUM_N // 2) % NUM_N
        g_ptrs = g_ptr + n * BLOCK + lane[:, None]
        if EXPERT_ORDER:
            tl.store(g_ptrs + row[None, :].to(tl.int64) * N, g.to(tl.bfloat16))
        else:
            tl.store(
                g_ptrs + pair[None, :].to(tl.int64) * N,
                g.to(tl.bfloat16),
                mask=valid[None, :],
            )


def gemm1(x, x_scale, w, w_scale, permutation, tile, expert_order=True):
    """Return g, the first grouped GEMM's result.

    Args:
        x: [T, H] float8_e4m3fn.
        x_scale: [H/128, T] float32, or [T, H/128] with SCALES_ROW_MAJOR.
        w: [E_local, N, H] float8_e4m3fn, N = 2I, `up` rows first, or `gate` rows with GATE_FIRST.
        w_scale: [E_local, N/128, H/128] float32.
        permutation: `permute`'s result for tile.block_m.
        tile: block_m, group, programs, num_warps, num_stages (see tiles.py).
        expert_order: False stores in pair order.

    Returns:
        g [rows, N] bfloat16, columns of `up` first. Padding rows of used tiles hold zeros, rows of
            unused tiles are undefined. In pair order it is [T * top_k, N], undefined where the
            pair's expert is not local.
    """
    num_local_experts, columns, hidden = w.shape
    pairs_or_rows = permutation.pair_of_row if expert_order else permutation.row_of_pair
    g = torch.empty(
        pairs_or_rows.numel(), columns, dtype=torch.bfloat16, device=x.device
    )

    w_shape = [num_local_experts * columns, hidden]
    w_desc = TensorDescriptor(w, w_shape, [hidden, 1], [BLOCK, BLOCK])
    work = permutation.tile_expert.shape[0] * (columns // BLOCK)
    programs = min(work, tile.programs)
    gemm1_kernel[(programs,)](
        x,
        x_scale,
        w_desc,
        w_scale,
        permutation.pair_of_row,
        permutation.tile_expert,
        permutation.num_tiles,
        g,
        x.shape[0],
        H=hidden,
        N=columns,
        BLOCK_M=tile.block_m,
        GROUP=tile.group,
        EXPERT_ORDER=expert_order,
        TOP_K=permutation.row_of_pair.shape[1],
        GATE_FIRST=GATE_FIRST,
        ROW_MAJOR=SCALES_ROW_MAJOR,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return g


def gemm1_ref(x, x_scale, w, w_scale, permutation, block_m):
    """Compute `gemm1` in fp32 in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    pair_of_row = permutation.pair_of_row
    top_k = permutation.row_of_pair.shape[1]
    if not SCALES_ROW_MAJOR:
        x_scale = x_scale.t().contiguous()
    dequant_x = x.float() * by_column(x_scale)

    g = torch.zeros(
        (len(pair_of_row), w.shape[1]), dtype=torch.float32, device=x.device
    )
    for expert, rows in tiles_ref(permutation, block_m):
        token = pair_of_row[rows].long() // top_k
        g[rows] = dequant_x[token] @ dequantised(w[expert], w_scale[expert]).t()
    return g.roll(g.shape[1] // 2, 1) if GATE_FIRST else g


def by_column(scale):
    """Return scales [..., N / 128] as a scale for each column, [..., N]."""
    return scale.repeat_interleave(BLOCK, -1)


def dequantised(weights, scale):
    """Return fp32 [N, K] of weights [N, K] float8_e4m3fn and scale [N / 128, K / 128]."""
    by_row = scale.repeat_interleave(BLOCK, 0)
    return weights.float() * by_column(by_row)
