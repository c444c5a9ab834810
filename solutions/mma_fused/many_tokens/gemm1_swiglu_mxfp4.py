"""gemm1_swiglu_mxfp4: the first grouped GEMM with MXFP4 weights, and SwiGLU, h in bf16.

many_tokens.py takes it for sm_80, sm_86 (on which Triton has no FP8) and sm_89. x is read as FP8
and becomes bf16 in registers, as the weights do; both conversions are exact.

Map of the kernel: as gemm1_swiglu_fp16.py, a persistent grid over (row tile, BLOCK_N columns of h);
the MMAs are W[BLOCK_N, K] . x[BLOCK_M, K]^T for gate and for up. In a K step of 128 the low halves
of the weights' bytes are the even K and the high halves the odd K, so there are two products.
"""

import torch
import triton
import triton.language as tl

from ...common.triton.gemms.tile_order import tile_order
from ...common.triton.mxfp4.gemm1_mxfp4 import gemm1_mxfp4_ref
from ...common.triton.mxfp4.weights import weight_tile
from ...common.triton.rows.swiglu import swiglu, swiglu_ref
from .fp8_to_fp16 import UNPACKED_SCALE, fp8_to_fp16

BLOCK = 128  # K of a scale of x


@triton.jit
def even_and_odd(values):
    """Return the values [rows, 2 n] at even and at odd columns, [rows, n] each."""
    return values.reshape(values.shape[0], values.shape[1] // 2, 2).split()


@triton.jit
def gemm1_swiglu_mxfp4_kernel(
    x_ptr,  # [T, H] fp8, or as bytes
    x_scale_ptr,  # [T, H / 128] fp32
    w_ptr,  # [E_LOCAL, 2 I, H / 2] bytes, rows of gate first
    w_scale_ptr,  # [E_LOCAL, 2 I, H / 32] bytes
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    h_ptr,  # [rows, I] bf16, written
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # columns of h
    GROUP: tl.constexpr,
    TOP_K: tl.constexpr,
    SCALE: tl.constexpr,  # factor on x: UNPACKED_SCALE where it is loaded as bytes, else 1
):
    BLOCK: tl.constexpr = 128
    NUM_N: tl.constexpr = I // BLOCK_N
    NUM_K: tl.constexpr = H // BLOCK
    num_m = tl.load(num_tiles_ptr)
    lane = tl.arange(0, BLOCK)
    byte = tl.arange(0, BLOCK // 2)
    column = tl.arange(0, BLOCK_N)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        # padding repeats a token; gemm2's rows of it go nowhere
        token = tl.where(pair >= 0, pair // TOP_K, 0)
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * H + lane[None, :]
        gate_row = tl.load(tile_expert_ptr + m) * (2 * I) + n * BLOCK_N + column
        gate_row = gate_row[:, None].to(tl.int64)
        gate_ptrs = w_ptr + gate_row * (H // 2) + byte[None, :]
        gate_scale_ptrs = w_scale_ptr + gate_row * (H // 32) + byte[None, :] // 16
        up_ptrs = gate_ptrs + I * (H // 2)
        up_scale_ptrs = gate_scale_ptrs + I * (H // 32)

        gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            x = fp8_to_fp16(tl.load(x_ptrs + k * BLOCK)).to(tl.bfloat16)
            x_even, x_odd = even_and_odd(x)
            x_scale = tl.load(x_scale_ptr + token * NUM_K + k) * SCALE

            bytes_before = k * (BLOCK // 2)
            groups_before = k * (BLOCK // 32)
            even, odd = weight_tile(
                gate_ptrs + bytes_before, gate_scale_ptrs + groups_before
            )
            products = tl.dot(even, x_even.T)
            products = tl.dot(odd, x_odd.T, products)
            gate += products * x_scale[None, :]

            even, odd = weight_tile(
                up_ptrs + bytes_before, up_scale_ptrs + groups_before
            )
            products = tl.dot(even, x_even.T)
            products = tl.dot(odd, x_odd.T, products)
            up += products * x_scale[None, :]

        h = swiglu(gate, up)
        h_ptrs = h_ptr + row[None, :].to(tl.int64) * I + n * BLOCK_N + column[:, None]
        tl.store(h_ptrs, h.to(tl.bfloat16))


def gemm1_swiglu_mxfp4(x, x_scale, w, w_scale, permutation, choice):
    """Return h, the activation of the first grouped GEMM's result.

    Args:
        x: [T, H] float8_e4m3fn; x_scale: [T, H/128] float32.
        w: [E_local, 2I, H/2] int8, rows of gate first; w_scale: [E_local, 2I, H/32] int8.
        permutation: `permute`'s result for tile.block_m.
        choice: an Fp16Choice of choose_tiles.py, of which `gemm1` and `as_bytes` are taken.

    Returns:
        h [rows, I] bfloat16, and None for its scales. Padding rows hold any token's values, rows of
            unused tiles are undefined.
    """
    tile = choice.gemm1
    inter = w.shape[1] // 2
    rows = permutation.pair_of_row.numel()
    h = torch.empty(rows, inter, dtype=torch.bfloat16, device=x.device)

    scale = 1.0
    if choice.as_bytes:
        x = x.view(torch.uint8)
        scale = UNPACKED_SCALE
    work = permutation.tile_expert.shape[0] * (inter // tile.block_n)
    gemm1_swiglu_mxfp4_kernel[(min(work, tile.programs),)](
        x,
        x_scale,
        w,
        w_scale,
        permutation.pair_of_row,
        permutation.tile_expert,
        permutation.num_tiles,
        h,
        H=x.shape[1],
        I=inter,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        GROUP=tile.group,
        TOP_K=permutation.row_of_pair.shape[1],
        SCALE=scale,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return h, None


def gemm1_swiglu_mxfp4_ref(x, x_scale, w, w_scale, permutation, block_m):
    """Compute `gemm1_swiglu_mxfp4` in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    up, gate = gemm1_mxfp4_ref(x, x_scale, w, w_scale, permutation, block_m).chunk(
        2, dim=-1
    )
    return swiglu_ref(gate, up).bfloat16()
