"""flashinfer_cutlass: TensorRT-LLM's Hopper path, through FlashInfer's cutlass_fused_moe with DeepSeek's block scales.

It takes bf16 activations and quantises them again before each product, so it is less exact than solutions that read
the FP8 activations as they come. Ours are the routing (kernels/route.py) and the way to bf16 (dequantise.py).
"""

import inspect

import torch
from flashinfer.fused_moe import cutlass_fused_moe

from .arguments import check_signature, keywords
from .build import load_runner
from .dequantise import dequantise, dequantise_kernel
from .common.host.check_inputs import check_inputs
from .common.host.launch import launch_quickly
from .common.triton.route import route, route_kernel

if torch.cuda.get_device_capability() != (9, 0):
    major, minor = torch.cuda.get_device_capability()
    raise RuntimeError(f"flashinfer_cutlass: its kernels are for SM90; this GPU is sm_{major}{minor}")
_PARAMETERS = inspect.signature(cutlass_fused_moe).parameters
check_signature(_PARAMETERS)
load_runner()  # compiled here, when the solution is built, not when it is first called
launch_quickly(route_kernel, dequantise_kernel)


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
        RuntimeError: FlashInfer refuses the call.
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
    """Route, then call the library. tensors: as check_inputs takes them, with routing_bias None where there is none."""
    logits, bias, x, x_scale, w1, w1_scale, w2, w2_scale, output = tensors
    if x.shape[0] == 0:
        return
    with torch.cuda.device_of(x):
        expert, weight = route(logits, bias, local_expert_offset, routed_scaling_factor, w1.shape[0])
        activations, num_experts = dequantise(x, x_scale), logits.shape[1]
        experts = (w1, w1_scale), (w2, w2_scale)
        cutlass_fused_moe(**keywords(_PARAMETERS, expert, weight, activations, num_experts, *experts, output))
