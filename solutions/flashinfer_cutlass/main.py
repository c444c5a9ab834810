"""flashinfer_cutlass: the FP8 layer by TensorRT-LLM's Hopper kernels, through FlashInfer's
cutlass_fused_moe.

That function takes weights with DeepSeek's block scales, and bf16 activations, which it quantises
before each GEMM. So the FP8 activations are dequantised first and then quantised again, which is
less exact than reading them as they are. Routing and dequantising are our kernels (route.py and
dequantise.py in common/triton/rows).
"""

import inspect

import torch
from flashinfer.fused_moe import cutlass_fused_moe

from ..common.host.arguments import DS_ROUTING, RENORM_ROUTING, checked
from ..common.host.launch import launch_quickly
from ..common.triton.rows.dequantise import dequantise, dequantise_kernel
from ..common.triton.rows.route import route_kernel, topk_of
from .build import load_runner
from .keywords import check_signature, keywords

if torch.cuda.get_device_capability() != (9, 0):
    major, minor = torch.cuda.get_device_capability()
    needs = "its kernels are for SM90"
    raise RuntimeError(f"flashinfer_cutlass: {needs}; this GPU is sm_{major}{minor}")
_PARAMETERS = inspect.signature(cutlass_fused_moe).parameters
check_signature(_PARAMETERS)
load_runner()  # compiled here, when the solution is built, not when it is first called
launch_quickly(route_kernel, dequantise_kernel)


@checked(DS_ROUTING)
def run(args):
    """Write `output` [T, H] bf16: DeepSeek-V3's FP8 layer, of one expert-parallel rank.

    Arguments are DS_ROUTING's (common/host/arguments.py).

    Raises:
        ValueError: an argument is not what the definition says.
        RuntimeError: FlashInfer refuses the call.
    """
    layer(args)


@checked(RENORM_ROUTING)
def run_renorm(args):
    """As `run`, for definitions with renorm routing: bf16 logits, no bias, every expert local."""
    layer(args)


def layer(args):
    """Route, dequantise, then call FlashInfer.

    args: the call's arguments, as `check_arguments` returns them.
    """
    x = args.hidden_states
    if len(x) == 0:
        return

    num_experts = args.routing_logits.shape[1]
    gemm1 = (args.gemm1_weights, args.gemm1_weights_scale)
    gemm2 = (args.gemm2_weights, args.gemm2_weights_scale)
    with torch.cuda.device_of(x):
        expert, weight, _ = topk_of(args)
        activations = dequantise(x, args.hidden_states_scale)
        values = keywords(
            _PARAMETERS,
            expert,
            weight,
            activations,
            num_experts,
            gemm1,
            gemm2,
            args.output,
        )
        cutlass_fused_moe(**values)
