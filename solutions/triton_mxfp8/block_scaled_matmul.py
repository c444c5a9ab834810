"""block_scaled_matmul: x . w^T of MXFP8 operands: E4M3 codes with one E8M0 scale for each 32 of K.

Routes:
    native   tl.dot_scaled: SM100's tensor cores apply the scales themselves.
    bf16     codes times scales in bf16, which has room for them (see expand.py), on bf16 tensor cores: half the FP8
             rate. w is expanded in registers on its way to them, x before, or likewise where it is small.
    library  both operands expanded in passes of their own, then torch's bf16 product.
    fp16     codes in fp16, which has room for them without their scales; one product for each 32 of K, promoted to
             fp32 with both scales: less work for each w, more for each element of the result.
    fp8      the same on FP8 tensor cores: twice the rate, but Hopper sums FP8 products in about 14 bits.

Map of the kernel, which computes w[BLOCK_N, K] . x[BLOCK_M, K]^T: a program has one tile of the result and one of
SPLITS shares of K; both operands come through TMA, and scales a step ahead. Who finishes a tile's last share adds them.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .expand import expand, expand_ref
from .group_quantise import GROUP, quantise_groups, scale_value
from .kernels.tile_order import tile_order

TRITON_DTYPE = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
MAX_SHARED_TILES = 4096  # K is shared out only where there are few tiles


def block_scaled_matmul_ref(x_codes, x_scales, w_codes, w_scales, dtype):
    """Plain statement: both operands expanded to float32, multiplied in float32, cast once to dtype."""
    x, w = expand_ref(x_codes, x_scales, torch.float32), expand_ref(w_codes, w_scales, torch.float32)
    return (x @ w.t()).to(dtype)


@triton.jit
def load_scales(scales_ptr, row, first, row_stride, WORDS: tl.constexpr):
    """[len(row), WORDS], each row's scales from the first-th on."""
    start = tl.multiple_of(row.to(tl.int64) * row_stride + first, WORDS)
    return tl.load(scales_ptr + start[:, None] + tl.arange(0, WORDS)[None, :])


@triton.jit
def expand_tile(codes, scales, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """codes [ROWS, COLUMNS] fp8 times scales [ROWS, COLUMNS / 32], bf16."""
    groups = tl.reshape(codes.to(tl.float32), [ROWS, COLUMNS // 32, 32])
    return tl.reshape(groups * scale_value(scales)[:, :, None], [ROWS, COLUMNS]).to(tl.bfloat16)


@triton.jit
def round_tile(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x [ROWS, COLUMNS] bf16 rounded to MXFP8, bf16: group_round in registers."""
    groups = tl.reshape(x.to(tl.int16, bitcast=True), [ROWS * COLUMNS // 32, 32])
    codes, scale = quantise_groups(groups)
    return tl.reshape(codes.to(tl.float32) * scale_value(scale)[:, None], [ROWS, COLUMNS]).to(tl.bfloat16)


@triton.jit
def block_scaled_matmul_kernel(
    x_desc,  # [M, K] fp8 with X "codes", else bf16; block [BLOCK_M, BLOCK_K], or 32 wide on routes fp16 and fp8
    x_scales_ptr,  # [M, K / 32] uint8, or as int32 [M, K / 128] on those; read with X "codes" only
    w_desc,  # [N, K] fp8, block [BLOCK_N, as x_desc's]
    w_scales_ptr,  # [N, K / 32] uint8, or int32 as x_scales_ptr
    out_ptr,  # [M, N], written
    shares_ptr,  # [SPLITS, M, N] fp32 scratch; not used with one share
    arrived_ptr,  # [tiles] int32, zero; not used with one share
    M,
    N,
    num_k,  # K / BLOCK_K
    row_stride,  # of the scales: K / 32, or K / 128 where four are read at once
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLITS: tl.constexpr,
    ROUTE: tl.constexpr,
    X: tl.constexpr,
    OUT: tl.constexpr,
):
    # the routes that promote each group read a step's four scales at once
    WORDS: tl.constexpr = 1 if ROUTE == "fp16" or ROUTE == "fp8" else BLOCK_K // 32
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
    w_next = load_scales(w_scales_ptr, column, first * WORDS, row_stride, WORDS)
    if X == "codes":
        x_next = load_scales(x_scales_ptr, scale_row, first * WORDS, row_stride, WORDS)
    for k in range(first, last):
        ahead = tl.minimum(k + 1, last - 1) * WORDS
        if ROUTE == "native":  # the compiler pipelines these loads itself, and cannot place scales from a step before
            w = w_desc.load([n * BLOCK_N, k * BLOCK_K])
            x = x_desc.load([m * BLOCK_M, k * BLOCK_K])
            w_scales = load_scales(w_scales_ptr, column, k * WORDS, row_stride, WORDS)
            x_scales = load_scales(x_scales_ptr, scale_row, k * WORDS, row_stride, WORDS)
            total = tl.dot_scaled(w, w_scales, "e4m3", x.T, x_scales, "e4m3", acc=total)
        elif ROUTE == "bf16":
            w = w_desc.load([n * BLOCK_N, k * BLOCK_K])
            x = x_desc.load([m * BLOCK_M, k * BLOCK_K])
            w = expand_tile(w, w_next, BLOCK_N, BLOCK_K)
            w_next = load_scales(w_scales_ptr, column, ahead, row_stride, WORDS)
            if X == "codes":
                x = expand_tile(x, x_next, BLOCK_M, BLOCK_K)
                x_next = load_scales(x_scales_ptr, scale_row, ahead, row_stride, WORDS)
            elif X == "raw":
                x = round_tile(x, BLOCK_M, BLOCK_K)
            total = tl.dot(w, x.T, acc=total)
        else:
            tl.static_assert(BLOCK_K == 128, "a word of four scales a step")
            w_word = tl.reshape(w_next, [BLOCK_N])
            w_next = load_scales(w_scales_ptr, column, ahead, row_stride, WORDS)
            if X == "codes":
                x_word = tl.reshape(x_next, [BLOCK_M])
                x_next = load_scales(x_scales_ptr, scale_row, ahead, row_stride, WORDS)
            for group in tl.static_range(4):
                w = w_desc.load([n * BLOCK_N, k * BLOCK_K + group * 32])
                x = x_desc.load([m * BLOCK_M, k * BLOCK_K + group * 32])
                w_scale = scale_value((w_word >> (8 * group)) & 255)
                if X == "codes":
                    x_scale = scale_value((x_word >> (8 * group)) & 255)
                else:
                    x, scale = quantise_groups(x.to(tl.int16, bitcast=True))
                    x_scale = scale_value(scale)
                if ROUTE == "fp16":
                    product = tl.dot(w.to(tl.float16), x.to(tl.float16).T)
                else:
                    product = tl.dot(w, x.T)
                total += product * w_scale[:, None] * x_scale[None, :]

    at = row[None, :].to(tl.int64) * N + column[:, None]
    inside = row[None, :] < M
    if SPLITS == 1:
        tl.store(out_ptr + at, total.to(OUT), mask=inside)
    else:
        tl.store(shares_ptr + split * M * N + at, total, mask=inside)
        tl.debug_barrier()  # every thread's share is stored before the tile's counter says so
        arrived_ptr = arrived_ptr + m * num_n + n
        if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == SPLITS - 1:
            total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for share in tl.static_range(SPLITS):  # in this order whoever comes last, so that results repeat
                total += tl.load(shares_ptr + share * M * N + at, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(out_ptr + at, total.to(OUT), mask=inside)
            tl.store(arrived_ptr, 0)  # for the next launch


@lru_cache
def arrival_counters(device, stream):
    """[MAX_SHARED_TILES] int32 zeros, which every launch leaves so; one a stream, whose launches do not overlap."""
    return torch.zeros(MAX_SHARED_TILES, dtype=torch.int32, device=device)


def block_scaled_matmul(x, x_scales, w_codes, w_scales, out, tile):
    """out = (x times its scales) . (w times its scales)^T, summed in fp32.

    Args:
        x: [M, K] float8_e4m3fn. With x_scales None bfloat16: its own values where tile.x is "values" (from
            `group_round`; routes bf16 and library), to be quantised on the way where it is "raw" (not native).
        x_scales: [M, K/32] uint8 (E8M0 bits), or None.
        w_codes: [N, K] float8_e4m3fn; w_scales: [N, K/32] uint8. N a multiple of tile.block_n, K of tile.block_k.
        out: [M, N] bfloat16 or float16, written; float16 is Inf beyond 65504.
        tile: see tiles.py.
    """
    if x_scales is None:
        form = tile.x
    elif tile.x == "values":
        x, form = expand(x, x_scales), "values"
    else:
        form = "codes"
    if tile.route == "library":
        _library_product(x, expand(w_codes, w_scales), out)
        return
    (num_rows, width), num_columns = x.shape, w_codes.shape[0]
    tiles = triton.cdiv(num_rows, tile.block_m) * (num_columns // tile.block_n)
    splits = tile.splits if tiles <= MAX_SHARED_TILES else 1
    shares = arrived = w_scales
    if splits > 1:
        shares = torch.empty(splits, num_rows, num_columns, dtype=torch.float32, device=x.device)
        stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
        arrived = arrival_counters(x.device, stream)
    x_scales, box = w_scales if x_scales is None else x_scales, tile.block_k
    if tile.route in ("fp16", "fp8"):
        x_scales, w_scales, box = x_scales.view(torch.int32), w_scales.view(torch.int32), GROUP
    block_scaled_matmul_kernel[(tiles * splits,)](
        TensorDescriptor(x, [num_rows, width], [width, 1], [tile.block_m, box]),
        x_scales,
        TensorDescriptor(w_codes, [num_columns, width], [width, 1], [tile.block_n, box]),
        w_scales,
        out,
        shares,
        arrived,
        num_rows,
        num_columns,
        width // tile.block_k,
        w_scales.shape[1],
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        GROUP_M=tile.group,
        SPLITS=splits,
        ROUTE=tile.route,
        X=form,
        OUT=TRITON_DTYPE[out.dtype],
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _library_product(x, w, out):
    """out = x . w^T of bfloat16 operands, in torch; out may be float16, which a bf16 product would round twice."""
    if out.dtype == torch.bfloat16:
        torch.matmul(x, w.t(), out=out)
    elif x.is_cuda:
        out.copy_(torch.mm(x, w.t(), out_dtype=torch.float32))
    else:
        out.copy_(x.float() @ w.t().float())
