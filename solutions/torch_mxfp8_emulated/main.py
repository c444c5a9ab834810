"""torch_mxfp8_emulated: the MXFP8 linear layer in plain torch, by one bf16 product.

It quantises x, and expands both operands to bf16, which holds a code times its scale exactly. This
is what a user without block-scaled tensor cores writes first.
"""

import torch

from ..common.host.quantise import GROUP, quantise


def expand(codes, scales):
    """Return [R, K] bfloat16 of codes [R, K] float8_e4m3fn and scales [R, K/32] uint8 (E8M0)."""
    factor = torch.exp2(scales.float() - 127)
    factor = torch.where(scales == 255, torch.nan, factor)
    groups = codes.float().unflatten(-1, (-1, GROUP))
    values = groups * factor[..., None]
    return values.flatten(-2).bfloat16()


def multiply(codes, scales, weight, weight_scale, output):
    """Write the product of the expanded operands into output [M, N] bfloat16 or float16."""
    x = expand(codes, scales)
    w = expand(weight, weight_scale.view(torch.uint8))
    if output.dtype == torch.bfloat16:
        torch.matmul(x, w.t(), out=output)
    else:  # a product in bf16 would be rounded again, to fp16
        output.copy_(x.float() @ w.float().t())


def run(x, weight, weight_scale, output):
    """Write x . weight^T into output [M, N] bfloat16 or float16.

    x: [M, K] bfloat16. weight: [N, K] float8_e4m3fn. weight_scale: [N, K/32] int8, bits of E8M0.
    """
    codes, scales = quantise(x)
    multiply(codes, scales, weight, weight_scale, output)
