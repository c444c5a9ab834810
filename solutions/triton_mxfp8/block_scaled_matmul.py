"""block_scaled_matmul: x . w^T of MXFP8 operands: E4M3 codes with one E8M0 scale for each 32 of K.

main.py calls it, with a tile of tiles.py, which also names one of four ways to multiply (a route):
    native   tl.dot_scaled: SM100's tensor cores apply the scales themselves.
    bf16     codes times scales in bf16, which holds them exactly (see expand.py), on bf16 tensor
             cores: half the FP8 rate. w is expanded in registers; x is rounded in a kernel before,
             or in registers, too, where it is small.
    library  both operands expanded by kernels of their own, then torch's bf16 product.
    fp8      one FP8 product for each 32 of K, multiplied with both scales and added in fp32: twice
             the bf16 rate, but two fp32 operations an element for each 32 of K, and Hopper sums FP8
             products in about 14 bits.

Map of the kernel, which computes w[BLOCK_N, K] . x[BLOCK_M, K]^T: a program has one tile of the
result and one of SPLITS shares of K. Both operands come through TMA, num_stages steps in flight;
scales are loaded one step ahead, into registers. sum_splits_kernel adds up the shares: a program
takes BLOCK elements of the result.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.triton.gemms.tile_order import tile_order
from .expand import expand, expand_ref
from .group_quantise import quantise_groups, scale_value

TRITON_DTYPE = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
}


@triton.jit
def load_scales(scales_ptr, row, first_group, row_stride, GROUPS: tl.constexpr):
    """Return scales [len(row), GROUPS] uint8 of some rows, from first_group on."""
    start = tl.multiple_of(row.to(tl.int64) * row_stride + first_group, GROUPS)
    return tl.load(scales_ptr + start[:, None] + tl.arange(0, GROUPS)[None, :])


@triton.jit
def expand_tile(codes, scales, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return codes [ROWS, COLUMNS] fp8 times scales [ROWS, COLUMNS / 32], in bf16."""
    groups = tl.reshape(codes.to(tl.float32), [ROWS, COLUMNS // 32, 32])
    return tl.reshape(groups * scale_value(scales)[:, :, None], [ROWS, COLUMNS]).to(
        tl.bfloat16
    )


@triton.jit
def round_tile(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return x [ROWS, COLUMNS] bf16 rounded to MXFP8 values, in bf16, as `group_round` does."""
    groups = tl.reshape(x.to(tl.int16, bitcast=True), [ROWS * COLUMNS // 32, 32])
    codes, scale = quantise_groups(groups)
    return tl.reshape(
        codes.to(tl.float32) * scale_value(scale)[:, None], [ROWS, COLUMNS]
    ).to(tl.bfloat16)


@triton.jit
def block_scaled_matmul_kernel(
    x_desc,  # [M, K] fp8 with X "codes", else bf16; block [BLOCK_M, BLOCK_K]
    x_scales_ptr,  # [M, K / 32] uint8; read with X "codes" only
    w_desc,  # [N, K] fp8, block [BLOCK_N, BLOCK_K]
    w_scales_ptr,  # [N, K / 32] uint8
    out_ptr,  # [M, N] of type OUT, or fp32 [SPLITS, M, N] with SPLITS > 1; written
    M,
    N,
    num_k,  # K / BLOCK_K
    row_stride,  # K / 32
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLITS: tl.constexpr,
    ROUTE: tl.constexpr,  # "native", "bf16" or "fp8"
    X: tl.constexpr,  # what x is: "codes", "values" already rounded, or "raw" to be rounded here
    OUT: tl.constexpr,
):
    GROUPS: tl.constexpr = BLOCK_K // 32
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = N // BLOCK_N
    split = tl.program_id(0) // (num_m * num_n)
    m, n = tile_order(tl.program_id(0) % (num_m * num_n), num_m, num_n, GROUP_M)
    row = m * BLOCK_M + tl.arange(0, BLOCK_M)
    scale_row = tl.minimum(row, M - 1)  # rows beyond M are computed, not stored
    column = n * BLOCK_N + tl.arange(0, BLOCK_N)
    first = split * num_k // SPLITS
    last = (split + 1) * num_k // SPLITS

    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    w_next = load_scales(w_scales_ptr, column, first * GROUPS, row_stride, GROUPS)
    if X == "codes":
        x_next = load_scales(
            x_scales_ptr, scale_row, first * GROUPS, row_stride, GROUPS
        )
    for k in range(first, last):
        w = w_desc.load([n * BLOCK_N, k * BLOCK_K])
        x = x_desc.load([m * BLOCK_M, k * BLOCK_K])
        if (
            ROUTE == "native"
        ):  # the compiler pipelines these loads itself, and cannot place scales from a step before
            w_scales = load_scales(w_scales_ptr, column, k * GROUPS, row_stride, GROUPS)
            x_scales = load_scales(
                x_scales_ptr, scale_row, k * GROUPS, row_stride, GROUPS
            )
            total = tl.dot_scaled(w, w_scales, "e4m3", x.T, x_scales, "e4m3", acc=total)
        else:
            ahead = tl.minimum(k + 1, last - 1) * GROUPS
            w_scales = w_next
            w_next = load_scales(w_scales_ptr, column, ahead, row_stride, GROUPS)
            if X == "codes":
                x_scales = x_next
                x_next = load_scales(x_scales_ptr, scale_row, ahead, row_stride, GROUPS)
            if ROUTE == "fp8":
                tl.static_assert(BLOCK_K == 32, "one product for each group")
                w_scale = scale_value(tl.reshape(w_scales, [BLOCK_N]))
                x_scale = scale_value(tl.reshape(x_scales, [BLOCK_M]))
                total += tl.dot(w, x.T) * w_scale[:, None] * x_scale[None, :]
            else:
                if X == "codes":
                    x = expand_tile(x, x_scales, BLOCK_M, BLOCK_K)
                elif X == "raw":
                    x = round_tile(x, BLOCK_M, BLOCK_K)
                total = tl.dot(
                    expand_tile(w, w_scales, BLOCK_N, BLOCK_K), x.T, acc=total
                )

    at = (split * M + row)[None, :].to(tl.int64) * N + column[:, None]
    tl.store(out_ptr + at, total.to(OUT), mask=row[None, :] < M)


@triton.jit
def sum_splits_kernel(
    shares_ptr,  # [SPLITS, elements] fp32
    out_ptr,  # [elements], written
    elements,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    OUT: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(
            shares_ptr + split * elements + at, mask=at < elements, other=0.0
        )
    tl.store(out_ptr + at, total.to(OUT), mask=at < elements)


def block_scaled_matmul(x, x_scales, w_codes, w_scales, out, tile):
    """Write (x times its scales) . (w times its scales)^T into out, summed in fp32.

    Args:
        x: [M, K] float8_e4m3fn codes. With x_scales None it is bfloat16, on the bf16 and library
            routes only: MXFP8 values from `group_round` where tile.x is "values", or values that
            the kernel has to round to MXFP8 where it is "raw".
        x_scales: [M, K/32] uint8 (E8M0 bits), or None.
        w_codes: [N, K] float8_e4m3fn; w_scales: [N, K/32] uint8. N a multiple of tile.block_n, K of
            tile.block_k.
        out: [M, N] bfloat16 or float16, written; float16 is Inf beyond 65504.
        tile: see tiles.py.
    """
    if x_scales is None:
        form = tile.x
    elif tile.x == "values":
        x = expand(x, x_scales)
        form = "values"
    else:
        form = "codes"
    if tile.route == "library":
        _library_product(x, expand(w_codes, w_scales), out)
        return

    num_rows, width = x.shape
    num_columns = w_codes.shape[0]
    shares = out
    if tile.splits > 1:
        shape = (tile.splits, num_rows, num_columns)
        shares = torch.empty(shape, dtype=torch.float32, device=x.device)

    x_box = [tile.block_m, tile.block_k]
    w_box = [tile.block_n, tile.block_k]
    tiles = triton.cdiv(num_rows, tile.block_m) * (num_columns // tile.block_n)
    block_scaled_matmul_kernel[(tiles * tile.splits,)](
        TensorDescriptor(x, [num_rows, width], [width, 1], x_box),
        w_scales if x_scales is None else x_scales,
        TensorDescriptor(w_codes, [num_columns, width], [width, 1], w_box),
        w_scales,
        shares,
        num_rows,
        num_columns,
        width // tile.block_k,
        width // 32,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP_M=tile.group,
        SPLITS=tile.splits,
        ROUTE=tile.route,
        X=form,
        OUT=TRITON_DTYPE[shares.dtype],
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if tile.splits > 1:
        _sum_splits(shares, out, tile.splits)


def _sum_splits(shares, out, splits):
    """Write the sum of shares [splits, M, N] into out [M, N]."""
    elements = out.numel()
    grid = (triton.cdiv(elements, 1024),)
    sum_splits_kernel[grid](
        shares,
        out,
        elements,
        SPLITS=splits,
        BLOCK=1024,
        OUT=TRITON_DTYPE[out.dtype],
        num_warps=4,
    )


def _library_product(x, w, out):
    """Write x . w^T of bfloat16 operands into out, in torch.

    out may be float16, which a bf16 product would round twice.
    """
    if out.dtype == torch.bfloat16:
        torch.matmul(x, w.t(), out=out)
    elif x.is_cuda:
        out.copy_(torch.mm(x, w.t(), out_dtype=torch.float32))
    else:
        out.copy_(x.float() @ w.t().float())


def block_scaled_matmul_ref(x_codes, x_scales, w_codes, w_scales, dtype):
    """Return the product in plain torch, for tests: multiplied in float32, cast once to dtype."""
    x = expand_ref(x_codes, x_scales, torch.float32)
    w = expand_ref(w_codes, w_scales, torch.float32)
    return (x @ w.t()).to(dtype)
