"""group_quantise: bf16 to MXFP8: E4M3 codes, with one E8M0 scale for each 32 elements of a row.

main.py calls it on x. The conversion is that of OCP MX v1.0: the shared exponent is
floor(log2(amax)) - 8, 8 being E4M3's largest exponent, and at least -127. Codes are value over
scale, rounded to nearest even, and saturate at 448; amax over scale may be up to 512, so large
values of a group do saturate. A group of zeros gets the smallest scale, 2^-127. E4M3 has no
infinity, and the specification leaves the conversion of NaN and Inf open: here a group that has
either gets scale 255 (NaN) and NaN codes, so nothing turns finite unnoticed.

Map of the kernel: rows are whole groups, so the tensor is one list of groups; a program takes
GROUPS of them. The scale is read off the bits of amax: bf16 and E8M0 have the same exponent bias,
so it is amax's exponent less 8.
"""

import torch
import triton
import triton.language as tl

from ..common.host.quantise import GROUP
from ..common.host.quantise import quantise as group_quantise_ref  # noqa: F401  its plain-torch reference


@triton.jit
def scale_value(scale):
    """Return the fp32 value of E8M0 bits: 2^(scale - 127), or NaN for 255."""
    bits = scale.to(tl.int32) << 23
    bits = tl.where(scale == 0, 1 << 22, bits)  # 2^-127 is below fp32's normal numbers
    return tl.where(scale == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def quantise_groups(bits):
    """Return codes [groups, 32] fp8 and scales [groups] int32 of bf16 bits [groups, 32] int16."""
    # magnitudes have the order of their bits, in which NaN lies above all others
    amax = tl.max((bits & 0x7FFF).to(tl.int32), 1)
    exponent = amax >> 7
    finite = exponent < 255
    scale = tl.where(finite, tl.maximum(exponent - 8, 0), 255)
    # the bits of 2^(127 - scale)
    inverse = tl.where(finite, (254 - scale) << 23, 0x7FC00000).to(
        tl.float32, bitcast=True
    )
    x = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    scaled = x * inverse[:, None]
    clamped = tl.minimum(tl.maximum(scaled, -448.0), 448.0)
    # the clamp would lose a NaN
    return tl.where(finite[:, None], clamped, scaled).to(tl.float8e4nv), scale


@triton.jit
def group_quantise_kernel(
    x_ptr,  # [num_groups, 32] bf16, as int16
    codes_ptr,  # [num_groups, 32] fp8, or bf16 with ROUND, written
    scales_ptr,  # [num_groups] uint8, written, but not with ROUND
    num_groups,
    GROUPS: tl.constexpr,
    ROUND: tl.constexpr,
):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    inside = group < num_groups
    at = group[:, None].to(tl.int64) * 32 + tl.arange(0, 32)[None, :]
    bits = tl.load(x_ptr + at, mask=inside[:, None], other=0)
    codes, scale = quantise_groups(bits)
    if ROUND:
        values = codes.to(tl.float32) * scale_value(scale)[:, None]
        tl.store(codes_ptr + at, values.to(tl.bfloat16), mask=inside[:, None])
    else:
        tl.store(codes_ptr + at, codes, mask=inside[:, None])
        tl.store(scales_ptr + group, scale.to(tl.uint8), mask=inside)


def _launch(x, values, scales, rounded):
    """Write codes and scales of x, or, where rounded, codes times scales alone."""
    num_groups = x.numel() // GROUP
    # few groups: small programs, so that the device fills; many: enough loads in flight in each
    few = num_groups <= 16384
    groups = 16 if few else 128
    warps = 1 if few else 4
    grid = (triton.cdiv(num_groups, groups),)
    group_quantise_kernel[grid](
        x.view(torch.int16),
        values,
        scales,
        num_groups,
        GROUPS=groups,
        ROUND=rounded,
        num_warps=warps,
    )


def group_quantise(x):
    """Return x quantised to MXFP8.

    Args:
        x: [M, K] bfloat16, contiguous, K a multiple of 32, M at least 1.

    Returns:
        codes [M, K] float8_e4m3fn, scales [M, K/32] uint8 (E8M0 bits).
    """
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(
        x.shape[0], x.shape[1] // GROUP, dtype=torch.uint8, device=x.device
    )
    _launch(x, codes, scales, rounded=False)
    return codes, scales


def group_round(x):
    """Return x [M, K] bfloat16 rounded to MXFP8 values, [M, K] bfloat16, in one pass.

    bf16 tensor cores can multiply these. They are bit for bit `expand(*group_quantise(x))`.
    """
    values = torch.empty_like(x)
    _launch(x, values, values, rounded=True)  # scales are not written
    return values
