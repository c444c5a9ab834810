"""deepgemm: DeepGEMM's grouped FP8 products, from an installed `deep_gemm`, around our own stages.

The masked products, whose tiles follow each expert's own number of rows, at every T: see rows.py. Rows of experts of
other ranks are never made, but each expert has room for all tokens: 1 MB a token.
"""

import torch

from .activate import activate, activate_kernel
from .gather import gather, gather_kernel
from .kernels.check_inputs import check_inputs
from .kernels.combine import combine, combine_kernel
from .kernels.gpu_of import gpu_of
from .kernels.launch import launch_quickly
from .kernels.route import route, route_kernel
from .products import product
from .rows import count_rows_kernel, masked_rows, place_rows_kernel

launch_quickly(route_kernel, count_rows_kernel, place_rows_kernel, gather_kernel, activate_kernel, combine_kernel)


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

    Shapes and dtypes are the definition's; see check_inputs.

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: DeepGEMM refuses a product, or cannot compile its kernel.
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
    multiprocessors = gpu_of(hidden_states.device).multiprocessors
    with torch.cuda.device_of(hidden_states):
        expert, weight = route(
            routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, num_local_experts
        )
        rows = masked_rows(expert, num_local_experts)
        x, x_scale = gather(hidden_states, hidden_states_scale, rows, 16 * multiprocessors)
        g = product(x, x_scale, gemm1_weights, gemm1_weights_scale, rows, num_tokens)
        h, h_scale = activate(g, rows, 8 * multiprocessors)
        del x, g  # their memory serves y
        y = product(h, h_scale, gemm2_weights, gemm2_weights_scale, rows, num_tokens)
        combine(y.view(-1, hidden), rows.row_of_pair, weight, output, 0)
