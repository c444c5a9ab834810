"""hopper_fused: CUDA kernels for Hopper, one for the whole layer while tokens are few, a few when they are many.

While tokens are few the weights' way through memory bounds the layer, so everything is one launch that streams them
(fused_layer.cu). Then come four or six (many_*.cu): routing, two grouped products, sums. Up to 1024 tokens h is kept in
two FP8 terms, which costs nothing there; above, in `TERMS`. docs/hopper_fused.md tells how it came about.
"""

import torch

from .build import load_kernels
from .terms import TERMS

_kernels = load_kernels()  # compiled here, when the solution is built, not when it is first called

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
_OF_DS_ROUTING = ("routing_bias", "local_expert_offset", "routed_scaling_factor")


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
        ValueError: an argument is not what the definition says, or there are more tokens than a block of many_route
            has room for, 131072 at most; checked before anything is launched.
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
    names = [name for name in _ARGUMENTS if name not in _OF_DS_ROUTING]
    _call(_kernels.run_renorm, names, arguments)


def _call(function, names, arguments):
    try:
        function(*arguments, TERMS)
    except (TypeError, BufferError, RuntimeError) as error:
        if fault := _unfit_argument(names, arguments):
            raise ValueError(fault) from error
        raise


def _unfit_argument(names, arguments):
    """What the binding could not even hand over: no tensor, no number, or a tensor without memory; None if all fit."""
    first = arguments[0]
    for name, value in zip(names, arguments, strict=True):
        want = {"local_expert_offset": int, "routed_scaling_factor": (int, float)}.get(name, torch.Tensor)
        if not isinstance(value, want):
            words = {int: "an int", torch.Tensor: "a tensor"}.get(want, "a number")
            return f"{name}: got {type(value).__name__}, want {words}"
        if want is torch.Tensor and value.device.type != "cuda":
            return f"{name}: is on {value.device}, want a CUDA device"
        if want is torch.Tensor and value.device != first.device:
            return f"{name}: is on {value.device}, want {first.device} as routing_logits"
    return None
