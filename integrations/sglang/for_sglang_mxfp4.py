"""for_sglang_mxfp4: compute a layer of SGLang's with DeepSeek-V4's MXFP4 experts.

for_sglang.py calls `compute`.
"""

# pyright: reportMissingImports=false
# SGLang is installed where a package is used, not here.

import torch

from integrations import run

MANTISSA = (1 << 23) - 1  # the bits of a float32 below its exponent


def compute(x, topk_ids, topk_weights, quant_info, output):
    """Write the layer's result for tokens x [T, H] bfloat16 into output [T, H] bfloat16.

    Arguments are those of for_sglang_fp8.py's. SGLang loads the weights' scales as float32; the
    first call of a layer replaces them by E8M0 bytes, a quarter of the memory.
    """
    from sglang.kernels.ops.quantization.fp8_kernel import (
        sglang_per_token_group_quant_fp8,
    )

    for scale in (quant_info.w13_scale, quant_info.w2_scale):
        if scale.dtype == torch.float32:
            scale.data = e8m0(scale)

    values, values_scale = sglang_per_token_group_quant_fp8(x, 128)
    run(
        values,
        values_scale,
        topk_ids,
        topk_weights,
        quant_info.w13_weight,
        quant_info.w13_scale,
        quant_info.w2_weight,
        quant_info.w2_scale,
        0,
        output,
    )


def e8m0(scale):
    """Return float32 scales as E8M0 bytes, uint8: the exponents of powers of two.

    Raises:
        ValueError: a scale is not a power of two.
    """
    bits = scale.view(torch.int32)
    exponents = bits >> 23
    # 2^-127, whose byte is 0, is below float32's normal numbers, and 255 is NaN
    is_byte = (bits & MANTISSA == 0) & (exponents > 0) & (exponents < 255)
    is_byte |= bits == 1 << 22
    is_byte |= scale.isnan()
    if not is_byte.all():
        raise ValueError(
            "weight scales: got other float32 than powers of two, want those of E8M0"
        )
    return exponents.to(torch.uint8)
