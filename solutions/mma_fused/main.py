"""mma_fused: the layer on mma.sync, for every NVIDIA GPU from Ampere to Blackwell.

Up to MOST_TOKENS tokens one CUDA kernel does it all, bound by reading the weights; above, Triton kernels do, a stage
each (many_tokens.py). docs/mma_fused.md describes the design.
"""

import torch

from .build import load_kernels
from .many_tokens import many_tokens, many_tokens_renorm

MOST_TOKENS = 256  # of the one launch, as kMaxTokens in sizes.cuh

_kernels = load_kernels()  # compiled on import, when the solution is built, not at its first call

_ARGUMENTS = (
    "routing_logits",
    "routing_bias",
    "hidden_states",
    "hidden_states_scale",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
    "local_expert_offset",
    "routed_scaling_factor",
    "output",
)
_DS_ROUTING_ONLY = ("routing_bias", "local_expert_offset", "routed_scaling_factor")


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

    Shapes and dtypes are the definition's. Launches on the current stream and never waits for the device.

    Raises:
        ValueError: an argument is not what the definition says; checked before anything is launched.
        RuntimeError: CUDA refuses a call.
    """
    arguments = (
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
    )
    if _are_many(routing_logits):
        return many_tokens(*arguments)
    if isinstance(local_expert_offset, bool) or isinstance(routed_scaling_factor, bool):  # to the binding, 1 or 0
        raise ValueError(_unfit_argument(_ARGUMENTS, arguments))
    _call(_kernels.run_layer, _ARGUMENTS, arguments)


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
    arguments = (
        routing_logits,
        hidden_states,
        hidden_states_scale,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        output,
    )
    if _are_many(routing_logits):
        return many_tokens_renorm(*arguments)
    names = [name for name in _ARGUMENTS if name not in _DS_ROUTING_ONLY]
    _call(_kernels.run_renorm, names, arguments)


def _are_many(logits):
    return isinstance(logits, torch.Tensor) and logits.dim() > 0 and logits.shape[0] > MOST_TOKENS


def _call(function, names, arguments):
    try:
        function(*arguments, 0)  # a CTA on each SM
    except (TypeError, BufferError, RuntimeError) as error:
        if fault := _unfit_argument(names, arguments):
            raise ValueError(fault) from error
        raise


def _unfit_argument(names, arguments):
    """What is wrong with the first argument that the binding cannot convert; None if it can convert all."""
    first = arguments[0]
    for name, value in zip(names, arguments, strict=True):
        want = {"local_expert_offset": int, "routed_scaling_factor": (int, float)}.get(name, torch.Tensor)
        if not isinstance(value, want) or isinstance(value, bool):
            words = {int: "an int", torch.Tensor: "a tensor"}.get(want, "a number")
            return f"{name}: got {type(value).__name__}, want {words}"
        if want is torch.Tensor and value.device.type != "cuda":
            return f"{name}: is on {value.device}, want a CUDA device"
        if want is torch.Tensor and value.device != first.device:
            return f"{name}: is on {value.device}, want {first.device} as routing_logits"
    return None
