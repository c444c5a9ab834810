"""deepgemm: DeepGEMM's FP8 grouped GEMMs, from an installed `deep_gemm`, between Triton kernels; read `layer` downhill.

Rows of experts of other ranks are never made. How rows lie is decided by T alone (rows.py), so the host never waits
for the device. Every kernel may start before its predecessor ends (programmatic dependent launch) and waits for it.
"""

from functools import lru_cache

import torch

from .combine_reset import combine_reset, combine_reset_kernel
from .counters import counters, forget_counters
from .gather import gather_kernel, route_and_gather, route_count_kernel, route_gather_kernel
from .grouped_gemm import grouped_gemm
from .kernels.check_inputs import check_inputs
from .kernels.launch import launch_quickly
from .rows import arrange
from .swiglu_quant_rows import swiglu_quant_rows, swiglu_quant_rows_kernel

launch_quickly(route_gather_kernel, route_count_kernel, gather_kernel, swiglu_quant_rows_kernel, combine_reset_kernel)


@lru_cache
def programs_of(device):
    """Programs of swiglu_quant_rows on a device; few in the interpreter."""
    return 8 * (torch.cuda.get_device_properties(device).multi_processor_count if device.type != "cpu" else 1)


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
        RuntimeError: DeepGEMM refuses a GEMM, or cannot compile its kernel.
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
    num_tokens = x.shape[0]
    if num_tokens == 0:
        return
    rows, pdl = arrange(num_tokens), x.device.type != "cpu"
    with torch.cuda.device_of(x):
        counts = counters(x.device, w1.shape[0])
        try:
            x, x_scale, row_of_pair, layout, weight = route_and_gather(
                logits, bias, x, x_scale, counts, local_expert_offset, routed_scaling_factor, rows, pdl
            )
            g = grouped_gemm(x, x_scale, w1, w1_scale, rows, layout)
            h, h_scale = swiglu_quant_rows(g, row_of_pair, rows, programs_of(output.device), pdl)
            y = grouped_gemm(h, h_scale, w2, w2_scale, rows, layout)
            combine_reset(y, row_of_pair, weight, output, counts, pdl)
        except BaseException:
            forget_counters(output.device)
            raise
