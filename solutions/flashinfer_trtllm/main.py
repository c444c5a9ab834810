"""flashinfer_trtllm: TensorRT-LLM's kernels for SM100, the whole layer in one call of FlashInfer.

Not run by us on the hardware that it needs: what a test holds is that the call fits FlashInfer's signature and that
the layouts and dtypes handed over are the documented ones (arguments.py).
"""

import inspect

import torch
from flashinfer.fused_moe import trtllm_fp8_block_scale_moe
from flashinfer.fused_moe.core import get_trtllm_moe_sm100_module

from .arguments import check_signature, keywords
from .common.host import problem
from .common.host.check_inputs import check_inputs

if torch.cuda.get_device_capability()[0] != 10:
    major, minor = torch.cuda.get_device_capability()
    raise RuntimeError(f"flashinfer_trtllm: its kernels are for SM100 and SM103; this GPU is sm_{major}{minor}")
_PARAMETERS = inspect.signature(trtllm_fp8_block_scale_moe).parameters
check_signature(_PARAMETERS)
get_trtllm_moe_sm100_module()  # compiled here, when the solution is built, not when it is first called


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
        RuntimeError: FlashInfer refuses the call, or cannot load its kernels.
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
    """Call the library. tensors: as check_inputs takes them, with routing_bias None where there is none."""
    output = tensors[-1]
    if output.shape[0] == 0:
        return
    given = keywords(_PARAMETERS, problem, tensors, local_expert_offset, routed_scaling_factor)
    with torch.cuda.device_of(output):
        result = trtllm_fp8_block_scale_moe(**given)
        result = result[0] if isinstance(result, (list, tuple)) else result  # a list is announced for 0.8
        if result.data_ptr() != output.data_ptr():  # a version that takes no `output`, or does not heed it
            output.copy_(result)
