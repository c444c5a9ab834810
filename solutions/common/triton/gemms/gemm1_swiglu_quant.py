"""gemm1_swiglu_quant: the FP8 layer's first grouped GEMM, SwiGLU and quantisation in one kernel.

layer.py takes it where the `Choice` of tiles.py is `fused`, else gemm1 and then swiglu_quant. Both
ways give the same bits.

W13's halves are `up` and `gate`, in the interface's order; swiglu.py computes h from the two. Both
operands have one fp32 scale for each 128 of K. So every 128 of K the tensor cores' sum is
multiplied by (row scale x weight scale) and added to an fp32 accumulator. A tile has 128 columns of
h, one quantisation group.

This is a kernel of its own, and not a constexpr of gemm1's, so that a profile tells the two apart
by name.

The grid is persistent: programs go through tiles of BLOCK_M rows by 128 columns of h. The MMAs are
W[128, K] . x[BLOCK_M, K]^T, with the weights as first operand, of which tensor cores want at least
64 rows; so BLOCK_M may be as small as 16. In each step of K the two blocks of weights come through
TMA, tokens are gathered with asynchronous copies (padding rows read nothing), and their scales come
by plain loads. The loads of num_stages steps are in flight.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ...host.interface import GATE_FIRST, SCALES_ROW_MAJOR
from ..rows.swiglu_quant import swiglu_and_scale, swiglu_quant_ref
from .gemm1 import gemm1_ref, scales_of_tokens
from .tile_order import tile_order

BLOCK = 128  # columns and K of a block scale


@triton.jit(do_not_specialize=["num_tokens"])
def gemm1_swiglu_quant_kernel(
    x_ptr,  # [T, H] fp8
    x_scale_ptr,  # [H / 128, T] fp32; [T, H / 128] with ROW_MAJOR
    w_desc,  # [E_LOCAL * 2 I, H] fp8, block [128, 128]
    w_scale_ptr,  # [E_LOCAL, 2 I / 128, H / 128] fp32
    pair_of_row_ptr,  # [rows] int32
    tile_expert_ptr,  # [max_tiles] int32
    num_tiles_ptr,  # [1] int32
    h_ptr,  # [rows, I] fp8, or [T * TOP_K, I] in pair order, written
    h_scale_ptr,  # [rows or T * TOP_K, I / 128] fp32, written
    num_tokens,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    GROUP: tl.constexpr,  # see tile_order.py
    EXPERT_ORDER: tl.constexpr,  # else h is in pair order, see gemm1.py
    TOP_K: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    ROW_MAJOR: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    NUM_N: tl.constexpr = I // BLOCK
    NUM_K: tl.constexpr = H // BLOCK

    num_m = tl.load(num_tiles_ptr)
    lane = tl.arange(0, BLOCK)
    for index in range(tl.program_id(0), num_m * NUM_N, tl.num_programs(0)):
        m, n = tile_order(index, num_m, NUM_N, GROUP)
        expert = tl.load(tile_expert_ptr + m)

        row = m * BLOCK_M + tl.arange(0, BLOCK_M)
        pair = tl.load(pair_of_row_ptr + row)
        valid = pair >= 0
        token = pair // TOP_K
        x_ptrs = x_ptr + token[:, None].to(tl.int64) * H + lane[None, :]
        x_scale_ptrs, x_scale_step = scales_of_tokens(
            x_scale_ptr, token, num_tokens, NUM_K, ROW_MAJOR
        )

        first_block = expert * (2 * NUM_N) + n
        up_block = first_block + NUM_N if GATE_FIRST else first_block
        gate_block = first_block if GATE_FIRST else first_block + NUM_N

        up = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        gate = tl.zeros((BLOCK, BLOCK_M), tl.float32)
        for k in range(NUM_K):
            x = tl.load(x_ptrs + k * BLOCK, mask=valid[:, None], other=0.0)
            x_scale = tl.load(x_scale_ptrs + k * x_scale_step, mask=valid, other=0.0)

            up_w = w_desc.load([up_block * BLOCK, k * BLOCK])
            up_scale = tl.load(w_scale_ptr + up_block * NUM_K + k)
            up += tl.dot(up_w, x.T) * (x_scale * up_scale)[None, :]

            gate_w = w_desc.load([gate_block * BLOCK, k * BLOCK])
            gate_scale = tl.load(w_scale_ptr + gate_block * NUM_K + k)
            gate += tl.dot(gate_w, x.T) * (x_scale * gate_scale)[None, :]

        # rounded as gemm1 stores them: a token's bits do not depend on where SwiGLU is
        gate = gate.to(tl.bfloat16).to(tl.float32)
        up = up.to(tl.bfloat16).to(tl.float32)
        h, scale = swiglu_and_scale(gate, up, 0)
        q = (h / scale[None, :]).to(tl.float8e4nv)

        h_ptrs = h_ptr + n * BLOCK + lane[:, None]
        if EXPERT_ORDER:
            tl.store(h_ptrs + row[None, :].to(tl.int64) * I, q)
            tl.store(h_scale_ptr + row * NUM_N + n, scale)
        else:
            tl.store(h_ptrs + pair[None, :].to(tl.int64) * I, q, mask=valid[None, :])
            tl.store(h_scale_ptr + pair * NUM_N + n, scale, mask=valid)


def gemm1_swiglu_quant(x, x_scale, w, w_scale, permutation, tile, expert_order=True):
    """Return h and h_scale, the quantised activation of the first grouped GEMM's result.

    Args:
        x: [T, H] float8_e4m3fn.
        x_scale: [H/128, T] float32, or [T, H/128] with SCALES_ROW_MAJOR.
        w: [E_local, 2I, H] float8_e4m3fn, `up` rows first, or `gate` rows with GATE_FIRST.
        w_scale: [E_local, 2I/128, H/128] float32.
        permutation: `permute`'s result for tile.block_m.
        tile: block_m, group, programs, num_warps, num_stages (see tiles.py).
        expert_order: False stores in pair order.

    Returns:
        h [rows, I] float8_e4m3fn and h_scale [rows, I/128] float32; dequantised h is h * h_scale.
            Padding rows of used tiles hold zeros, rows of unused tiles are undefined. In pair order
            there are T * top_k rows, undefined where the pair's expert is not local.
    """
    num_local_experts, double_inter, hidden = w.shape
    inter = double_inter // 2
    pairs_or_rows = permutation.pair_of_row if expert_order else permutation.row_of_pair
    rows = pairs_or_rows.numel()
    h = torch.empty(rows, inter, dtype=torch.float8_e4m3fn, device=x.device)
    h_scale = torch.empty(rows, inter // BLOCK, dtype=torch.float32, device=x.device)

    w_shape = [num_local_experts * double_inter, hidden]
    w_desc = TensorDescriptor(w, w_shape, [hidden, 1], [BLOCK, BLOCK])
    work = permutation.tile_expert.shape[0] * (inter // BLOCK)
    programs = min(work, tile.programs)
    gemm1_swiglu_quant_kernel[(programs,)](
        x,
        x_scale,
        w_desc,
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
        GROUP=tile.group,
        EXPERT_ORDER=expert_order,
        TOP_K=permutation.row_of_pair.shape[1],
        GATE_FIRST=GATE_FIRST,
        ROW_MAJOR=SCALES_ROW_MAJOR,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return h, h_scale


def gemm1_swiglu_quant_ref(x, x_scale, w, w_scale, permutation, block_m):
    """Compute `gemm1_swiglu_quant` in plain torch, for tests.

    Rows of padding or beyond the last tile are left zero.
    """
    g = gemm1_ref(x, x_scale, w, w_scale, permutation, block_m)
    return swiglu_quant_ref(g.bfloat16())
