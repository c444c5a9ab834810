"""dequantise: hidden states from FP8 with a scale per 128 columns to bf16.

flashinfer_cutlass and flashinfer_mxfp4 call it, as FlashInfer's functions take bf16.

Map of the kernel: one program reads a tile of tokens by 128 columns and one scale a token, and
writes the tile.
"""

import torch
import triton
import triton.language as tl

from ...host.interface import SCALES_ROW_MAJOR

BLOCK = 128
TOKENS = 16


@triton.jit(do_not_specialize=["num_tokens"])
def dequantise_kernel(
    x_ptr,  # [T, H] fp8
    scale_ptr,  # [H / BLOCK, T] fp32; [T, H / BLOCK] with ROW_MAJOR
    out_ptr,  # [T, H] bf16, written
    num_tokens,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    ROW_MAJOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    block = tl.program_id(1)
    at = token[:, None] * H + block * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = token < num_tokens
    x = tl.load(x_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    if ROW_MAJOR:
        scale_ptrs = scale_ptr + token * (H // BLOCK) + block
    else:
        scale_ptrs = scale_ptr + block.to(tl.int64) * num_tokens + token
    scale = tl.load(scale_ptrs, mask=mask, other=0.0)
    tl.store(out_ptr + at, (x * scale[:, None]).to(tl.bfloat16), mask=mask[:, None])


def dequantise(x, x_scale):
    """Return x times its scales.

    Args:
        x: [T, H] float8_e4m3fn, T >= 1, H a multiple of 128.
        x_scale: [H/128, T] float32, or [T, H/128] with SCALES_ROW_MAJOR.

    Returns:
        [T, H] bfloat16.
    """
    num_tokens, hidden = x.shape
    out = torch.empty(num_tokens, hidden, dtype=torch.bfloat16, device=x.device)
    grid = (-(-num_tokens // TOKENS), hidden // BLOCK)
    dequantise_kernel[grid](
        x,
        x_scale,
        out,
        num_tokens,
        H=hidden,
        BLOCK=BLOCK,
        TOKENS=TOKENS,
        ROW_MAJOR=SCALES_ROW_MAJOR,
        num_warps=4,
    )
    return out


def dequantise_ref(x, x_scale):
    """Compute `dequantise` in plain torch, for tests, on any device."""
    if not SCALES_ROW_MAJOR:
        x_scale = x_scale.t()
    return (x.float() * x_scale.repeat_interleave(BLOCK, dim=1)).bfloat16()
