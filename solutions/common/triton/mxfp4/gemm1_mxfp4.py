"""gemm1_mxfp4: the first grouped GEMM with MXFP4 weights, g = x . W13^T in bf16, in expert order.

layer_mxfp4.py calls it. A tile of weights is dequantised to bf16, exactly, and multiplied with x in
bf16, which holds FP8 exactly, too. The scales of x are applied to the sums of every 128 of K.

Map of the kernel: a persistent grid over (row tile, 128 columns of g), as gemms/gemm1.py; the MMAs
are W[128, K] . x[BLOCK_M, K]^T. Per K step of 128, 64 bytes of each row of weights are the even and
the odd K, so x is loaded as its even and its odd columns, and there are two products.
"""

import torch
import triton
import triton.language as tl

from ..gemms.tile_order import tile_order
from ..rows.permute import tiles_ref
from .weights import BLOCK, dequantised_ref, weight_tile


@triton.jit
def gemm1_mxfp4_kernel(
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [T, H / 128] fp32
    w_ptr,  # [E_LOCAL, N, H / 2] bytes, rows of gate first
    w_scale_ptr,  # [E_LOCAL, N, H / 32] bytes
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    g_ptr,  # [rows, N] bf16, columns of up first, written
    H: tl.constexpr,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    GROUP: tl.constexpr,
    TOP_K: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_N: tl.constexpr = N // BLOCK
    NUM_K: tl.constexpr = H // BLOCK
    num_m = tl.load(num_tiles_ptr)
    column = tl.arange(0, BLOCK)
    byte = tl.arange(0, BLOCK // 2)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        valid = pair >= 0
        token = pair // TOP_K
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * H + 2 * byte[None, :]
        w_row = (tl.load(tile_expert_ptr + m) * N + n * BLOCK + column)[:, None].to(
            tl.int64
        )
        w_ptrs = w_ptr + w_row * (H // 2) + byte[None, :]
        w_scale_ptrs = w_scale_ptr + w_row * (H // 32) + byte[None, :] // 16

        g = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            x_even = tl.load(x_ptrs + k * BLOCK, mask=valid[:, None], other=0.0)
            x_odd = tl.load(x_ptrs + k * BLOCK + 1, mask=valid[:, None], other=0.0)
            x_scale = tl.load(x_scale_ptr + token * NUM_K + k, mask=valid, other=0.0)
            even, odd = weight_tile(
                w_ptrs + k * (BLOCK // 2), w_scale_ptrs + k * (BLOCK // 32)
            )
            products = tl.dot(even, x_even.to(tl.bfloat16).T)
            products = tl.dot(odd, x_odd.to(tl.bfloat16).T, products)
            g += products * x_scale[None, :]

        up_first = (n + NUM_N // 2) % NUM_N
        g_ptrs = (
            g_ptr + row[None, :].to(tl.int64) * N + up_first * BLOCK + column[:, None]
        )
        tl.store(g_ptrs, g.to(tl.bfloat16))


def gemm1_mxfp4(x, x_scale, w, w_scale, permutation, tile):
    """Return g, the first grouped GEMM's result.

    Args:
        x: [T, H] float8_e4m3fn; x_scale: [T, H/128] float32.
        w: [E_local, 2I, H/2] int8, rows of gate first; w_scale: [E_local, 2I, H/32] int8.
        permutation: `permute`'s result for tile.block_m.
        tile: block_m, group, programs, num_warps, num_stages (see tiles.py).

    Returns:
        g [rows, 2I] bfloat16, columns of `up` first. Padding rows of used tiles hold zeros, rows of
        unused tiles are undefined.
    """
    columns = w.shape[1]
    rows = permutation.pair_of_row.numel()
    g = torch.empty(rows, columns, dtype=torch.bfloat16, device=x.device)
    work = permutation.tile_expert.shape[0] * (columns // BLOCK)
    gemm1_mxfp4_kernel[(min(work, tile.programs),)](
        x,
        x_scale,
        w,
        w_scale,
        permutation.pair_of_row,
        permutation.tile_expert,
        permutation.num_tiles,
        g,
        H=x.shape[1],
        N=columns,
        BLOCK_M=tile.block_m,
        GROUP=tile.group,
        TOP_K=permutation.row_of_pair.shape[1],
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return g


def gemm1_mxfp4_ref(x, x_scale, w, w_scale, permutation, block_m):
    """Compute `gemm1_mxfp4` in fp32 in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    pair_of_row = permutation.pair_of_row
    top_k = permutation.row_of_pair.shape[1]
    g = torch.zeros(
        (len(pair_of_row), w.shape[1]), dtype=torch.float32, device=x.device
    )
    tokens = x.float() * x_scale.repeat_interleave(BLOCK, -1)
    for expert, rows in tiles_ref(permutation, block_m):
        weights = dequantised_ref(w[expert], w_scale[expert])
        g[rows] = tokens[pair_of_row[rows].long() // top_k] @ weights.t()
    return g.roll(g.shape[1] // 2, 1)
