"""dequantise: hidden states from FP8 with a scale per 128 columns to bf16, which FlashInfer takes.

Map of the kernel: one program reads a tile of tokens by 128 columns and one scale a token, and
writes the tile.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
TOKENS = 16


def dequantise_ref(hidden_states, hidden_states_scale):
    """Plain statement of `dequantise`; same arguments and results, on any device."""
    scale = hidden_states_scale.repeat_interleave(BLOCK, dim=1)
    return (hidden_states.float() * scale).bfloat16()


@triton.jit(do_not_specialize=["num_tokens"])
def dequantise_kernel(
    x_ptr,  # [T, H] fp8
    scale_ptr,  # [T, H / BLOCK] fp32
    out_ptr,  # [T, H] bf16, written
    num_tokens,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    block = tl.program_id(1)
    at = token[:, None] * H + block * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = token < num_tokens
    x = tl.load(x_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + token * (H // BLOCK) + block, mask=mask, other=0.0)
    tl.store(out_ptr + at, (x * scale[:, None]).to(tl.bfloat16), mask=mask[:, None])


def dequantise(hidden_states, hidden_states_scale):
    """Return bf16 hidden states.

    Args:
        hidden_states: [T, H] float8_e4m3fn, T >= 1, H a multiple of 128.
        hidden_states_scale: [T, H / 128] float32.

    Returns:
        [T, H] bfloat16.
    """
    num_tokens, hidden = hidden_states.shape
    out = torch.empty(num_tokens, hidden, dtype=torch.bfloat16, device=hidden_states.device)
    grid = (-(-num_tokens // TOKENS), hidden // BLOCK)
    dequantise_kernel[grid](
        hidden_states,
        hidden_states_scale,
        out,
        num_tokens,
        H=hidden,
        BLOCK=BLOCK,
        TOKENS=TOKENS,
        num_warps=4,
    )
    return out
