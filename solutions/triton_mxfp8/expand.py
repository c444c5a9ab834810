"""expand: MXFP8 codes times their scales, in bf16.

block_scaled_matmul.py calls it on its `library` route. E4M3 has four significant bits and a scale
is a power of two, so bf16 holds the product exactly. The exceptions are magnitudes below 2^-126
with bits below 2^-133, the last of bf16, which are rounded, and those from 2^128 on, which are Inf
in bf16 as in fp32. Scale 255 is NaN, whatever the code.

Map of the kernel: rows are whole groups of 32, so the tensor is one list of groups; a program takes
GROUPS of them.
"""

import torch
import triton
import triton.language as tl

from .group_quantise import GROUP, scale_value


@triton.jit
def expand_kernel(
    codes_ptr,  # [num_groups, 32] fp8
    scales_ptr,  # [num_groups] uint8
    values_ptr,  # [num_groups, 32] bf16, written
    num_groups,
    GROUPS: tl.constexpr,
):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    inside = group < num_groups
    at = group[:, None].to(tl.int64) * 32 + tl.arange(0, 32)[None, :]
    codes = tl.load(codes_ptr + at, mask=inside[:, None], other=0.0)
    scale = tl.load(scales_ptr + group, mask=inside, other=0)
    values = codes.to(tl.float32) * scale_value(scale)[:, None]
    tl.store(values_ptr + at, values.to(tl.bfloat16), mask=inside[:, None])


def expand(codes, scales):
    """Return [R, K] bfloat16 of contiguous codes [R, K] float8_e4m3fn, scales [R, K/32] uint8."""
    values = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    num_groups = scales.numel()
    grid = (triton.cdiv(num_groups, 128),)
    expand_kernel[grid](codes, scales, values, num_groups, GROUPS=128, num_warps=4)
    return values


def expand_ref(codes, scales, dtype=torch.bfloat16):
    """Compute `expand` in plain torch, for tests.

    codes: [..., K]; scales: [..., K/32]. dtype: the result's.
    """
    factor = torch.exp2(scales.double() - 127)
    factor = torch.where(scales == 255, torch.nan, factor)
    groups = codes.double().unflatten(-1, (-1, GROUP))
    values = groups * factor[..., None]
    return values.flatten(-2).to(dtype)
