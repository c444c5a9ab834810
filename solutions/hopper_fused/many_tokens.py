"""many_tokens: the layer stage by stage, for token counts at which the tensor cores are the bound."""

from functools import lru_cache
from typing import NamedTuple

import torch

from .kernels.combine import combine, combine_kernel
from .kernels.gemm1 import gemm1, gemm1_kernel
from .kernels.gemm1_swiglu_quant import gemm1_swiglu_quant, gemm1_swiglu_quant_kernel
from .kernels.gemm2 import gemm2, gemm2_kernel
from .kernels.launch import launch_quickly
from .kernels.permute import count_kernel, permute, place_kernel
from .kernels.route import route, route_kernel
from .kernels.swiglu_quant import swiglu_quant, swiglu_quant_kernel

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

MAX_Y_BYTES = 900_000_000  # bound on gemm2's result; wider ones are made in column slices


class Tile(NamedTuple):
    """See kernels/gemm1.py and gemm2.py."""

    block_m: int
    block_n: int
    group: int
    programs: int
    num_warps: int
    num_stages: int


@lru_cache
def _multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


def run_many_tokens(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
    output,
    terms,
):
    """The layer, for arguments that were checked.

    With one term, g goes to memory in bf16 and swiglu_quant reads it: two accumulators in one tile spill. With two
    terms it may not be rounded to bf16, so gemm1 applies the activation itself.
    """
    multiprocessors = _multiprocessors(output.device)
    num_local_experts, hidden = gemm1_weights.shape[0], hidden_states.shape[1]
    with torch.cuda.device_of(output):
        expert, weight = route(
            routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, num_local_experts
        )
        permutation = permute(expert, num_local_experts, 64)
        first = (hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, permutation)
        if terms == 1:
            g = gemm1(*first, Tile(64, 128, 16, 2 * multiprocessors, 4, 3))
            h, h_scale = swiglu_quant(g, permutation, 64, 8 * multiprocessors)
            del g  # its memory serves y
        else:
            h, h_scale = gemm1_swiglu_quant(*first, Tile(64, 128, 16, multiprocessors, 8, 4), terms=terms)
        rows, blocks = h.shape[0], hidden // 128
        slices = next(n for n in range(1, blocks + 1) if blocks % n == 0 and rows * (hidden // n) * 2 <= MAX_Y_BYTES)
        y = torch.empty((rows, hidden // slices), dtype=torch.bfloat16, device=h.device)
        for first_column in range(0, hidden, hidden // slices):
            gemm2(
                h,
                h_scale,
                gemm2_weights,
                gemm2_weights_scale,
                permutation,
                first_column,
                y,
                Tile(64, 128, 16, 2 * multiprocessors, 4, 4),
            )
            combine(y, permutation.row_of_pair, weight, output, first_column)
