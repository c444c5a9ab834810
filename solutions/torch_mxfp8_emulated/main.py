"""torch_mxfp8_emulated: the layer in plain torch: quantise, expand both operands to bf16, one bf16
product.

What a user without block-scaled tensor cores writes first. bf16 holds a code times its scale
exactly.
"""

import torch

from ..common.host.quantise import GROUP, quantise


def expand(codes, scales):
    """codes [R, K] float8_e4m3fn, scales [R, K/32] uint8 (E8M0 bits) -> [R, K] bfloat16."""
    factor = torch.where(scales == 255, torch.nan, torch.exp2(scales.float() - 127))[..., None]
    return (codes.float().unflatten(-1, (-1, GROUP)) * factor).flatten(-2).bfloat16()


def multiply(codes, scales, weight, weight_scale, output):
    """Product of the expanded operands into output [M, N] bfloat16 or float16."""
    x, w = expand(codes, scales), expand(weight, weight_scale.view(torch.uint8))
    if output.dtype == torch.bfloat16:
        torch.matmul(x, w.t(), out=output)
    else:  # a bf16 product would be rounded twice
        output.copy_(x.float() @ w.float().t())


def run(x, weight, weight_scale, output):
    """x [M, K] bfloat16, weight [N, K] float8_e4m3fn, weight_scale [N, K/32] int8 (E8M0); writes
    output [M, N].
    """
    multiply(*quantise(x), weight, weight_scale, output)
