"""sglang_triton: both products by SGLang's own Triton kernel, around our routing, order of rows, SwiGLU and combine.

Rows of experts of other ranks are never made, so they cost nothing. The second product reads both operands through
TMA, as SGLang does on an H200.
"""

import torch

from .grouped_product import grouped_product
from .kernels.check_inputs import check_inputs
from .kernels.combine import combine, combine_kernel
from .kernels.gpu_of import gpu_of
from .kernels.launch import launch_quickly
from .kernels.permute import count_kernel, permute, place_kernel
from .kernels.replay import replayed
from .kernels.route import route, route_kernel
from .kernels.swiglu_quant import swiglu_quant, swiglu_quant_kernel
from .sorted_tokens import sorted_tokens, sorted_tokens_kernel
from .tiles import choose_configs

launch_quickly(route_kernel, count_kernel, place_kernel, sorted_tokens_kernel, swiglu_quant_kernel, combine_kernel)

MAX_Y_BYTES = 900_000_000  # bound on the second product, the largest scratch; wider ones are made in column slices


@replayed
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
    num_tokens, hidden = hidden_states.shape
    if num_tokens == 0:
        return
    num_local_experts = gemm1_weights.shape[0]
    first_config, second_config = choose_configs(num_tokens)
    block_m = first_config["BLOCK_SIZE_M"]
    with torch.cuda.device_of(hidden_states):
        expert, weight = route(
            routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, num_local_experts
        )
        permutation = permute(expert, num_local_experts, block_m)
        order = sorted_tokens(permutation, num_tokens, block_m)
        g = grouped_product(
            hidden_states,
            hidden_states_scale,
            (1, num_tokens),
            gemm1_weights,
            gemm1_weights_scale,
            permutation,
            order,
            num_tokens,
            first_config,
            tma=False,
        )
        h, h_scale = swiglu_quant(g, permutation, block_m, 8 * gpu_of(hidden_states.device).multiprocessors)
        del g  # its memory serves y
        blocks, rows = hidden // 128, h.shape[0]
        slices = next(n for n in range(1, blocks + 1) if blocks % n == 0 and rows * hidden // n * 2 <= MAX_Y_BYTES)
        width = hidden // slices
        for first in range(0, hidden, width):
            y = grouped_product(
                h,
                h_scale,
                (h_scale.shape[1], 1),
                gemm2_weights[:, first : first + width],
                gemm2_weights_scale[:, first // 128 : (first + width) // 128],
                permutation,
                order,
                num_tokens,
                second_config,
                tma=True,
            )
            combine(y, permutation.row_of_pair, weight, output, first)
            del y  # before the next is made
