"""gemm1_swiglu_fp16: the first grouped GEMM and SwiGLU by fp16 tensor cores; h in fp16, with a
power of two as the scale of each row and 128 columns.

many_tokens.py takes it for sm_80, sm_86 and sm_89, which have no TMA; on the first two Triton has
no FP8 either. Both operands come through asynchronous copies as FP8, become fp16 in registers, and
fp16 tensor cores multiply them. Each step's products are scaled and added in fp32.

Map of the kernel: a persistent grid over (row tile, 128 columns of h), rows in expert order; the
MMAs are W[128, K] . x[BLOCK_M, K]^T for up and for gate.
"""

import torch
import triton
import triton.language as tl

from ...common.host.interface import GATE_FIRST, SCALES_ROW_MAJOR
from ...common.triton.gemms.gemm1 import gemm1_ref, scales_of_tokens
from ...common.triton.gemms.tile_order import tile_order
from ...common.triton.rows.swiglu import swiglu, swiglu_ref
from .fp8_to_fp16 import UNPACKED_SCALE, fp8_to_fp16

BLOCK = 128  # columns and K of a block scale


@triton.jit(do_not_specialize=["num_tokens"])
def gemm1_swiglu_fp16_kernel(
    x_ptr,  # [T, H] fp8, or uint8 where Triton has no FP8
    x_scale_ptr,  # [H / 128, T] fp32; [T, H / 128] with ROW_MAJOR
    w_ptr,  # [E_LOCAL * 2 I, H] fp8, or uint8 likewise
    w_scale_ptr,  # [E_LOCAL, 2 I / 128, H / 128] fp32
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    h_ptr,  # [rows, I] fp16, written
    h_scale_ptr,  # [rows, I / 128] fp32, written
    num_tokens,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,  # K of a step: 128, or less where 128 would spill registers
    GROUP: tl.constexpr,
    TOP_K: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    ROW_MAJOR: tl.constexpr,
    SCALE: tl.constexpr,  # factor on products: UNPACKED_SCALE^2 where operands are bytes, else 1
):
    BLOCK: tl.constexpr = 128
    NUM_N: tl.constexpr = I // BLOCK
    NUM_K: tl.constexpr = H // BLOCK
    num_m = tl.load(num_tiles_ptr)
    lane = tl.arange(0, BLOCK_K)
    column = tl.arange(0, BLOCK)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)
        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        token = tl.where(
            pair >= 0, pair // TOP_K, 0
        )  # padding repeats a token; gemm2's rows of it go nowhere
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * H + lane[None, :]
        x_scale_ptrs, x_scale_step = scales_of_tokens(
            x_scale_ptr, token, num_tokens, NUM_K, ROW_MAJOR
        )
        first_row = (expert * 2 * NUM_N + n) * BLOCK
        up_row = first_row + I if GATE_FIRST else first_row
        gate_row = first_row if GATE_FIRST else first_row + I
        in_block = column[:, None] * H + lane[None, :]
        up_ptrs = w_ptr + up_row.to(tl.int64) * H + in_block
        gate_ptrs = w_ptr + gate_row.to(tl.int64) * H + in_block
        up_scale_row = w_scale_ptr + up_row // BLOCK * NUM_K
        gate_scale_row = w_scale_ptr + gate_row // BLOCK * NUM_K

        up = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        gate = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        for k in range(H // BLOCK_K):
            block = k * BLOCK_K // BLOCK
            x = fp8_to_fp16(tl.load(x_ptrs + k * BLOCK_K)).T
            x_scale = tl.load(x_scale_ptrs + block * x_scale_step) * SCALE
            up_w = fp8_to_fp16(tl.load(up_ptrs + k * BLOCK_K))
            up += tl.dot(up_w, x) * (x_scale * tl.load(up_scale_row + block))[None, :]
            gate_w = fp8_to_fp16(tl.load(gate_ptrs + k * BLOCK_K))
            gate += (
                tl.dot(gate_w, x) * (x_scale * tl.load(gate_scale_row + block))[None, :]
            )

        h = swiglu(gate, up)
        # the power of two that maps the largest absolute value to 2^14 or more, below 2^15
        exponent = (tl.max(tl.abs(h), 0).to(tl.int32, bitcast=True) >> 23) - 14
        bits = tl.maximum(exponent, 1) << 23
        inverse = ((254 << 23) - bits).to(tl.float32, bitcast=True)
        h_ptrs = h_ptr + row[None, :].to(tl.int64) * I + n * BLOCK + column[:, None]
        tl.store(h_ptrs, (h * inverse[None, :]).to(tl.float16))
        tl.store(h_scale_ptr + row * NUM_N + n, bits.to(tl.float32, bitcast=True))


def gemm1_swiglu_fp16(x, x_scale, w, w_scale, permutation, choice):
    """Return h and h_scale, the activation of the first grouped GEMM's result.

    Args:
        x: [T, H] float8_e4m3fn.
        x_scale: [H/128, T] float32, or [T, H/128] with SCALES_ROW_MAJOR.
        w: [E_local, 2I, H] float8_e4m3fn, `up` rows first, or `gate` rows with GATE_FIRST.
        w_scale: [E_local, 2I/128, H/128] float32.
        permutation: `permute`'s result for tile.block_m.
        choice: an Fp16Choice of choose_tiles.py, of which `gemm1` and `as_bytes` are taken; 128
            columns a tile.

    Returns:
        h [rows, I] float16 and h_scale [rows, I/128] float32, powers of two; dequantised h is h *
            h_scale. Padding rows hold a token's values, rows of unused tiles are undefined.
    """
    tile = choice.gemm1
    _, double_inter, hidden = w.shape
    inter = double_inter // 2
    rows = permutation.pair_of_row.numel()
    h = torch.empty(rows, inter, dtype=torch.float16, device=x.device)
    h_scale = torch.empty(rows, inter // BLOCK, dtype=torch.float32, device=x.device)

    scale = 1.0
    if choice.as_bytes:
        x = x.view(torch.uint8)
        w = w.view(torch.uint8)
        scale = UNPACKED_SCALE**2
    work = permutation.tile_expert.shape[0] * (inter // BLOCK)
    programs = min(work, tile.programs)
    gemm1_swiglu_fp16_kernel[(programs,)](
        x,
        x_scale,
        w,
        w_scale,
        permutation.pair_of_row,
        permutation.tile_expert,
        permutation.num_tiles,
        h,
        h_scale,
        x.shape[0],
        H=hidden,
        I=inter,
        BLOCK_M=tile.block_m,
        BLOCK_K=tile.block_k,
        GROUP=tile.group,
        TOP_K=permutation.row_of_pair.shape[1],
        GATE_FIRST=GATE_FIRST,
        ROW_MAJOR=SCALES_ROW_MAJOR,
        SCALE=scale,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return h, h_scale


def gemm1_swiglu_fp16_ref(x, x_scale, w, w_scale, permutation, block_m):
    """Compute `gemm1_swiglu_fp16` in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    g = gemm1_ref(x, x_scale, w, w_scale, permutation, block_m)
    up, gate = g.chunk(2, dim=-1)
    h = swiglu_ref(gate, up).unflatten(-1, (-1, BLOCK))

    amax = h.abs().amax(-1)
    amax = amax.clamp(min=2.0**-100)
    exponent = amax.frexp().exponent - 15
    scale = torch.ldexp(torch.ones_like(amax), exponent)
    values = (h / scale[..., None]).flatten(-2)
    return values.half(), scale
