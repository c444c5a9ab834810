"""torch_scaled_mxfp8: the MXFP8 linear layer by torch._scaled_mm, which has MXFP8 on SM100 only.

x is quantised in plain torch. We have not run it, for lack of such a GPU.
"""

import torch

from ..common.host.quantise import quantise


def swizzled(scales):
    """Return scales [R, K/32] uint8 as float8_e8m0fnu in the order that torch._scaled_mm takes.

    That is in tiles of 128 rows by 4 scales, zero-padded. In a tile, the scale of row 32 a + b and
    column c is at index 16 b + 4 a + c.
    """
    rows, groups = scales.shape
    padded = torch.nn.functional.pad(scales, (0, -groups % 4, 0, -rows % 128))
    padded_rows, padded_groups = padded.shape
    tiles = padded.view(padded_rows // 128, 4, 32, padded_groups // 4, 4)
    in_order = tiles.permute(0, 3, 2, 1, 4).contiguous()
    return in_order.flatten().view(torch.float8_e8m0fnu)


def multiply(codes, scales, weight, weight_scale, output):
    """Write the product of the quantised operands into output [M, N] bfloat16 or float16."""
    w_scales = weight_scale.view(torch.uint8)
    torch._scaled_mm(
        codes,
        weight.t(),
        scale_a=swizzled(scales),
        scale_b=swizzled(w_scales),
        out_dtype=output.dtype,
        out=output,
    )


def run(x, weight, weight_scale, output):
    """Write x . weight^T into output [M, N] bfloat16 or float16.

    x: [M, K] bfloat16. weight: [N, K] float8_e4m3fn. weight_scale: [N, K/32] int8, bits of E8M0.
    """
    if x.shape[0]:
        codes, scales = quantise(x)
        multiply(codes, scales, weight, weight_scale, output)
