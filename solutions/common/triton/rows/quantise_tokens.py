"""quantise_tokens: bf16 tokens to FP8, with one fp32 scale for each token and 128 columns.

triton_fused_v2 launches it ahead of the layer for bf16 tokens. It is not fused into gemm1, which
reads each token once for every column tile: in bf16 that would be twice the bytes, and the token
would be quantised again for each of 8 to 16 tiles.

A program has GROUPS whole groups of 128 columns of one token, so amax and scale are reductions
inside it. Divisions are rounded correctly (div_rn), so the bytes are those of plain torch.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
FP8_MAX = 448.0
# so that the scale of a group of zeros, or nearly so, is a normal number
LEAST_AMAX = 1e-10


@triton.jit
def quantise_tokens_kernel(
    x_ptr,  # [T, H] bf16
    q_ptr,  # [T, H] fp8, written
    scale_ptr,  # [T, H / 128] fp32, written
    H: tl.constexpr,
    GROUPS: tl.constexpr,
    LEAST: tl.constexpr,
):
    BLOCK: tl.constexpr = 128
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = token * H + group[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + at).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), 1), LEAST), 448.0)
    tl.store(
        q_ptr + at,
        tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)).to(tl.float8e4nv),
    )
    tl.store(scale_ptr + token * (H // BLOCK) + group, scale)


def quantise_tokens(x):
    """Return FP8 tokens and their scales, as the routed definitions take them.

    Args:
        x: [T, H] bfloat16, finite; T >= 1, H a multiple of 128.

    Returns:
        [T, H] float8_e4m3fn and scale [T, H/128] float32: amax / 448 of the group.
    """
    num_tokens, hidden = x.shape
    groups = 8 if hidden % (8 * BLOCK) == 0 else 1
    q = torch.empty(num_tokens, hidden, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(
        num_tokens, hidden // BLOCK, dtype=torch.float32, device=x.device
    )
    programs = hidden // (groups * BLOCK)  # of a token
    quantise_tokens_kernel[(num_tokens, programs)](
        x, q, scale, H=hidden, GROUPS=groups, LEAST=LEAST_AMAX, num_warps=4
    )
    return q, scale


def quantise_tokens_ref(x):
    """Compute `quantise_tokens` in plain torch, for tests."""
    groups = x.float().unflatten(-1, (-1, BLOCK))
    amax = groups.abs().amax(-1)
    amax = amax.clamp(min=LEAST_AMAX)

    # Not amax / 448: to divide by a Python number, torch multiplies by 1 / 448 on a GPU.
    largest = torch.full_like(amax, FP8_MAX)
    scale = amax / largest
    values = (groups / scale[..., None]).flatten(-2)
    return values.to(torch.float8_e4m3fn), scale
