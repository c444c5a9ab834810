"""sglang_triton: both GEMMs by SGLang's own Triton kernel, around our routing, order of rows,
SwiGLU and combine.

Rows of experts of other ranks are never made, so they cost nothing. The second GEMM reads both
operands through TMA, as SGLang does on an H200.
"""

import torch

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, checked
from ..common.host.launch import launch_quickly
from ..common.host.problem import TOP_K
from ..common.triton.column_slices import column_slices
from ..common.triton.combine import combine, combine_kernel
from ..common.triton.permute import count_kernel, permute, place_kernel
from ..common.triton.route import route, route_kernel
from .grouped_gemm import grouped_gemm
from .overflow_gemm import overflow_gemm_kernel
from .overlap import overlap, replayed_or_captured
from .route_one import route_one, route_one_kernel
from .swiglu_quant_rows import swiglu_quant_rows, swiglu_quant_rows_kernel
from .tiles import choose_configs, usual_tiles

OVERLAPPING = route_one_kernel, overflow_gemm_kernel, swiglu_quant_rows_kernel, combine_kernel
launch_quickly(route_kernel, count_kernel, place_kernel, *OVERLAPPING)
overlap(*OVERLAPPING)

MOST_Y_BYTES = 1_200_000_000  # of the second GEMM; wider ones are made in column slices


@replayed_or_captured
@checked(DS_ROUTING)
def run(given):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H]
    bf16.

    Arguments are DS_ROUTING's (common/host/arguments.py). Launches on the current stream and never
    waits for the device.

    Raises:
        ValueError: an argument is not what the definition says.
    """
    layer(given)


@replayed_or_captured
@checked(RENORM_ROUTING)
def run_renorm(given):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(given)


def layer(given):
    """Launch the layer."""
    logits, x, w1, w1_scale = (
        given.routing_logits,
        given.hidden_states,
        given.gemm1_weights,
        given.gemm1_weights_scale,
    )
    w2, w2_scale = given.gemm2_weights, given.gemm2_weights_scale
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return
    num_local_experts, _, inter = w2.shape
    with torch.cuda.device_of(x):
        pairs = num_tokens * TOP_K
        first_config, second_config, by_tma = choose_configs(pairs / logits.shape[1], inter)
        block_m = first_config["BLOCK_SIZE_M"]
        bias, offset, factor = (
            given.routing_bias,
            given.local_expert_offset,
            given.routed_scaling_factor,
        )
        routing = logits, bias, offset, factor, num_local_experts
        if num_tokens == 1:
            weight, permutation = route_one(*routing, block_m)
        else:
            expert, weight = route(*routing)
            permutation = permute(expert, num_local_experts, block_m, padding=pairs)
        most = permutation.tile_expert.shape[0]
        tiles = usual_tiles(
            pairs, num_local_experts / logits.shape[1], num_local_experts, block_m, most
        )

        form = dict(config=first_config, tiles=tiles, x_in_order=False, weights_by_tma=by_tma)
        x_scale = given.hidden_states_scale
        g = grouped_gemm(x, x_scale, (1, num_tokens), w1, w1_scale, permutation, **form)
        h, h_scale = swiglu_quant_rows(g, permutation)
        del g  # its memory serves y
        width = hidden // column_slices(len(h), hidden, MOST_Y_BYTES)
        for first in range(0, hidden, width):
            w2_slice = w2[:, first : first + width]
            scale_slice = w2_scale[:, first // 128 : (first + width) // 128]
            form = dict(config=second_config, tiles=tiles, x_in_order=True, weights_by_tma=True)
            y = grouped_gemm(
                h, h_scale, h_scale.stride(), w2_slice, scale_slice, permutation, **form
            )
            combine(y, permutation.row_of_pair, weight, given.output, first, branch=True, pdl=True)
            del y  # before the next is made
