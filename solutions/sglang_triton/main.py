"""sglang_triton: both products by SGLang's own Triton kernel, around our routing, order of rows, SwiGLU and combine.

Rows of experts of other ranks are never made, so they cost nothing. The second product reads both operands through
TMA, as SGLang does on an H200.
"""

import torch

from .common.host.check_inputs import check_inputs
from .common.host.launch import launch_quickly
from .common.host.problem import TOP_K
from .common.triton.combine import combine, combine_kernel
from .common.triton.permute import count_kernel, permute, place_kernel
from .common.triton.route import route, route_kernel
from .grouped_product import grouped_product
from .overlap import overlap, replayed_or_captured
from .rest_product import rest_product_kernel
from .route_one import route_one, route_one_kernel
from .swiglu_quant_rows import swiglu_quant_rows, swiglu_quant_rows_kernel
from .tiles import choose_configs, usual_tiles

OVERLAPPING = route_one_kernel, rest_product_kernel, swiglu_quant_rows_kernel, combine_kernel
launch_quickly(route_kernel, count_kernel, place_kernel, *OVERLAPPING)
overlap(*OVERLAPPING)

MAX_Y_BYTES = 1_200_000_000  # bound on the second product, the largest scratch; wider ones are made in column slices


@replayed_or_captured
def run(
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
):
    """DeepSeek-V3 FP8 block-scale MoE layer of one expert-parallel rank; writes `output` [T, H] bf16.

    Shapes and dtypes are the definition's; see check_inputs. Launches on the current stream and never waits for the
    device.

    Raises:
        ValueError: an argument is not what the definition says.
    """
    tensors = (
        routing_logits,
        routing_bias,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        output,
    )
    check_inputs(tensors, local_expert_offset, routed_scaling_factor)
    layer(tensors, local_expert_offset, routed_scaling_factor)


@replayed_or_captured
def run_renorm(
    routing_logits,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    output,
):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    routed = (hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights)
    check_inputs((routing_logits, *routed, gemm2_weights_scale, output))
    layer((routing_logits, None, *routed, gemm2_weights_scale, output), 0, 1.0)


def layer(tensors, local_expert_offset, routed_scaling_factor):
    """Launch the layer. tensors: as check_inputs takes them, with routing_bias None where there is none."""
    logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, output = tensors
    num_tokens, hidden = x.shape
    if num_tokens == 0:
        return
    num_local_experts, _, inter = w2.shape
    with torch.cuda.device_of(x):
        pairs = num_tokens * TOP_K
        first_config, second_config, by_tma = choose_configs(pairs / logits.shape[1], inter)
        block_m = first_config["BLOCK_SIZE_M"]
        routing = logits, bias, local_expert_offset, routed_scaling_factor, num_local_experts
        if num_tokens == 1:
            weight, permutation = route_one(*routing, block_m)
        else:
            expert, weight = route(*routing)
            permutation = permute(expert, num_local_experts, block_m, padding=pairs)
        most = permutation.tile_expert.shape[0]
        tiles = usual_tiles(pairs, num_local_experts / logits.shape[1], num_local_experts, block_m, most)

        form = dict(config=first_config, tiles=tiles, x_in_order=False, weights_by_tma=by_tma)
        g = grouped_product(x, x_scale, (1, num_tokens), w1, w1_scale, permutation, **form)
        h, h_scale = swiglu_quant_rows(g, permutation)
        del g  # its memory serves y
        blocks, rows = hidden // 128, h.shape[0]
        slices = next(n for n in range(1, blocks + 1) if blocks % n == 0 and rows * hidden // n * 2 <= MAX_Y_BYTES)
        width = hidden // slices
        for first in range(0, hidden, width):
            w2_slice = w2[:, first : first + width]
            scale_slice = w2_scale[:, first // 128 : (first + width) // 128]
            form = dict(config=second_config, tiles=tiles, x_in_order=True, weights_by_tma=True)
            y = grouped_product(h, h_scale, h_scale.stride(), w2_slice, scale_slice, permutation, **form)
            combine(y, permutation.row_of_pair, weight, output, first, branch=True, pdl=True)
            del y  # before the next is made
