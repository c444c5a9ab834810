"""triton_mxfp8: a linear layer in MXFP8, in Triton.

`run` is the entry point; `quantise` and `multiply` are its two steps, for those who keep the
quantised x. Each step is a file.
"""

import torch

from ..common.host.gpu_of import gpu_of
from ..common.host.launch import launch_quickly
from ..common.host.replay import replayed
from .block_scaled_matmul import (
    block_scaled_matmul,
    block_scaled_matmul_kernel,
    sum_splits_kernel,
)
from .check_operands import check_operands
from .expand import expand_kernel
from .group_quantise import group_quantise, group_quantise_kernel, group_round
from .tiles import choose_tile

launch_quickly(
    group_quantise_kernel, expand_kernel, block_scaled_matmul_kernel, sum_splits_kernel
)


def quantise(x):
    """Return codes [M, K] float8_e4m3fn and scales [M, K/32] uint8, bits of E8M0, of x.

    x: [M, K] bfloat16.
    """
    with torch.cuda.device_of(x):
        return group_quantise(x)


def multiply(codes, scales, weight, weight_scale, output, route=None):
    """Write into `output` the product of quantised x, as `quantise` returns it, with the weight.

    weight, weight_scale, output: as `run` takes them. route: one of the ways to multiply that
    block_scaled_matmul.py describes, by its name; None for the fastest.
    """
    tile = choose_tile(gpu_of(codes.device).architecture, *codes.shape, route)
    with torch.cuda.device_of(codes):
        block_scaled_matmul(
            codes, scales, weight, weight_scale.view(torch.uint8), output, tile
        )


@replayed
def run(x, weight, weight_scale, output):
    """Write `output` [M, N]: a linear layer in MXFP8.

    Args:
        x: [M, K] bfloat16; quantised here, in groups of 32 along K. M may be 0; K a multiple of
            128.
        weight: [N, K] float8_e4m3fn; N a multiple of 128.
        weight_scale: [N, K/32] int8 or uint8, the bits of E8M0.
        output: [M, N] bfloat16 or float16.

    Launches on the current stream and never waits for the device.

    Raises:
        ValueError: an argument is not as above, or the architecture has no tile table.
    """
    check_operands(x, weight, weight_scale, output)
    if x.shape[0] == 0:
        return

    tile = choose_tile(gpu_of(x.device).architecture, *x.shape)
    scales = weight_scale.view(torch.uint8)
    with torch.cuda.device_of(x):
        if tile.x == "codes":
            codes, x_scales = group_quantise(x)
            block_scaled_matmul(codes, x_scales, weight, scales, output, tile)
        elif tile.x == "values":  # the codes themselves are never stored
            values = group_round(x)
            block_scaled_matmul(values, None, weight, scales, output, tile)
        else:
            block_scaled_matmul(x, None, weight, scales, output, tile)
