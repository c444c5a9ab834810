"""many_tokens: the layer in Triton kernels, a stage each, for more tokens than the one launch takes."""

import torch

from .kernels.check_inputs import check_inputs
from .kernels.combine import combine, combine_kernel
from .kernels.gemm1 import gemm1, gemm1_kernel
from .kernels.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from .kernels.gemm2 import gemm2, gemm2_kernel
from .kernels.gpu_of import gpu_of
from .kernels.launch import launch_quickly
from .kernels.permute import count_kernel, permute, place_kernel
from .kernels.problem import NUM_EXPERTS, TOP_K
from .kernels.replay import replayed
from .kernels.route import route, route_kernel
from .kernels.swiglu_quant import swiglu_quant, swiglu_quant_kernel
from .tiles import choose

launch_quickly(
    route_kernel,
    count_kernel,
    place_kernel,
    gemm1_kernel,
    swiglu_quant_kernel,
    gemm1_swiglu_quant_kernel,
    gemm2_kernel,
    combine_kernel,
)

MAX_Y_BYTES = 900_000_000  # bound on gemm2's result, the largest scratch; wider ones are made in column slices


def column_slices(rows, hidden):
    """Number of equal column slices, each a multiple of 128 wide, that keep rows x slice x 2 bytes in bound."""
    blocks = hidden // 128
    fits = (n for n in range(1, blocks) if blocks % n == 0 and rows * (hidden // n) * 2 <= MAX_Y_BYTES)
    return next(fits, blocks)


@replayed
def many_tokens(*arguments):
    """Launch the layer; arguments as `run` of main.py has them. Raises ValueError as check_inputs and choose do."""
    logits, bias, *tensors, local_expert_offset, routed_scaling_factor, output = arguments
    check_inputs((logits, bias, *tensors, output), local_expert_offset, routed_scaling_factor)
    _layer(logits, bias, *tensors, local_expert_offset, routed_scaling_factor, output)


@replayed
def many_tokens_renorm(*arguments):
    """As `many_tokens`, for definitions with renorm routing; arguments as `run_renorm` has them."""
    check_inputs(arguments)
    logits, *tensors, output = arguments
    _layer(logits, None, *tensors, 0, 1.0, output)


def _layer(logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, offset, factor, output):
    num_local_experts, hidden, inter = w1.shape[0], x.shape[1], w2.shape[2]
    choice = choose(*gpu_of(x.device), (num_local_experts, hidden, inter), TOP_K / NUM_EXPERTS, x.shape[0])
    with torch.cuda.device_of(x):
        expert, weight = route(logits, bias, offset, factor, num_local_experts)
        permutation = permute(expert, num_local_experts, choice.gemm1.block_m)
        tile = choice.gemm1
        if choice.fused:
            h, h_scale = gemm1_swiglu_quant(x, x_scale, w1, w1_scale, permutation, tile, choice.tma)
        else:
            g = gemm1(x, x_scale, w1, w1_scale, permutation, tile, choice.tma)
            programs = 8 * tile.programs // tile.per_sm
            h, h_scale = swiglu_quant(g, permutation, tile.block_m, programs, choice.tma)
        rows = permutation.pair_of_row.shape[0]
        width = hidden // column_slices(rows, hidden)
        y = torch.empty(rows, width, dtype=torch.bfloat16, device=h.device)
        for first_column in range(0, hidden, width):
            gemm2(h, h_scale, w2, w2_scale, permutation, first_column, y, choice.gemm2, choice.tma)
            combine(y, permutation.row_of_pair, weight, output, first_column)
