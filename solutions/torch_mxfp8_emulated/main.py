"""torch_mxfp8_emulated: the layer in plain torch: quantise, expand both operands to bf16, one bf16 product.

What a user without block-scaled tensor cores writes first. bf16 holds a code times its scale exactly.
"""

import torch

GROUP = 32


def quantise(x):
    """x [M, K] bfloat16 -> groups' codes [M, K/32, 32] float8_e4m3fn, scales' exponents [M, K/32, 1] int32.

    A group with NaN or Inf gets NaN codes.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1, keepdim=True)
    _, exponent = torch.frexp(amax)
    shared = torch.where(amax == 0, -127, exponent - 9).clamp(-127, 127)
    values = torch.ldexp(groups, -shared).clamp(-448, 448)
    return torch.where(amax.isfinite(), values, torch.nan).to(torch.float8_e4m3fn), shared


def run(x, weight, weight_scale, output):
    """x [M, K] bfloat16, weight [N, K] float8_e4m3fn, weight_scale [N, K/32] int8 (E8M0); writes output [M, N]."""
    codes, shared = quantise(x)
    values = torch.ldexp(codes.float(), shared).flatten(-2).bfloat16()
    scale = weight_scale.view(torch.uint8).int()[..., None]
    factor = torch.where(scale == 255, torch.nan, torch.exp2(scale.float() - 127))
    expanded = (weight.float().unflatten(-1, (-1, GROUP)) * factor).flatten(-2).bfloat16()
    if output.dtype == torch.bfloat16:
        torch.matmul(values, expanded.t(), out=output)
    else:  # through bf16 the fp16 result would be rounded twice
        output.copy_(values.float() @ expanded.float().t())
