"""quantise: bf16 -> E4M3 codes with one E8M0 scale for each 32 elements of a row, in plain
torch.
"""

import torch

GROUP = 32


def quantise(x):
    """x [M, K] bfloat16 -> codes [M, K] float8_e4m3fn, scales [M, K/32] uint8 (E8M0 bits).

    A group with NaN or Inf gets scale 255 and NaN codes.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1, keepdim=True)
    finite = amax.isfinite()
    _, exponent = torch.frexp(amax)
    shared = torch.where(finite & (amax > 0), exponent - 9, -127).clamp(-127, 127)
    values = torch.where(finite, torch.ldexp(groups, -shared).clamp(-448, 448), torch.nan)
    scales = torch.where(finite, shared + 127, 255).to(torch.uint8)
    return values.to(torch.float8_e4m3fn).flatten(-2), scales.flatten(-2)
