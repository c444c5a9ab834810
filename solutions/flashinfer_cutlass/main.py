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
from .kernels.check_inputs import check_inputs
from .kernels.launch import launch_quickly
from .kernels.route import route, route_kernel

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
    if hidden_states.shape[0] == 0:
        return
    num_local_experts = gemm1_weights.shape[0]
    with torch.cuda.device_of(hidden_states):
        expert, weight = route(
            routing_logits, routing_bias, local_expert_offset, routed_scaling_factor, num_local_experts
        )
        cutlass_fused_moe(
            **keywords(
                _PARAMETERS,
                expert,
                weight,
                dequantise(hidden_states, hidden_states_scale),
                routing_logits.shape[1],
                (gemm1_weights, gemm1_weights_scale),
                (gemm2_weights, gemm2_weights_scale),
                output,
            )
        )
