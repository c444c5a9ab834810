"""quantise: bf16 to MXFP8 in plain torch: E4M3 codes, one E8M0 scale for each 32 elements of a row.

The two torch_*_mxfp8 solutions call it; for triton_mxfp8 it is the reference in tests.
"""

import torch

GROUP = 32


def quantise(x):
    """Return codes [M, K] float8_e4m3fn and scales [M, K/32] uint8 (E8M0 bits).

    x: [M, K] bfloat16. A group with NaN or Inf gets scale 255 and NaN codes.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1, keepdim=True)
    finite = amax.isfinite()

    _, exponent = torch.frexp(amax)
    has_exponent = finite & (amax > 0)
    shared = torch.where(has_exponent, exponent - 9, -127)
    shared = shared.clamp(-127, 127)

    scaled = torch.ldexp(groups, -shared)
    clamped = scaled.clamp(-448, 448)
    values = torch.where(finite, clamped, torch.nan)
    codes = values.to(torch.float8_e4m3fn)

    scales = torch.where(finite, shared + 127, 255)
    scales = scales.to(torch.uint8)
    return codes.flatten(-2), scales.flatten(-2)
