"""hopper_fused: CUDA kernels for Hopper, one launch for few tokens and four or six for many.

With few tokens, reading the weights from memory bounds the layer, so one kernel streams them (few_tokens/). With more,
routing, two grouped GEMMs and the combine are kernels of their own (many_tokens/). Up to 32 rows per expert h has two
FP8 parts, hi and lo, which costs little there; above, it has `H_SPLIT`. docs/hopper_fused.md describes the design.
"""

import torch

from .build import load_kernels
from .h_split import H_SPLIT

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
_ROUTED_ARGUMENTS = (
    "hidden_states",
    "hidden_states_scale",
    "topk_ids",
    "topk_weights",
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
    "local_expert_offset",
    "output",
)


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
        ValueError: an argument is not what the definition says, or there are more tokens than route_permute's shared
            memory has room for, 131072 at most; checked before anything is launched.
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
    names = [name for name in _ARGUMENTS if name not in _DS_ROUTING_ONLY]
    _call(_kernels.run_renorm, names, arguments)


def run_routed(
    hidden_states,
    hidden_states_scale,
    topk_ids,
    topk_weights,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    output,
):
    """As `run`, for routed definitions: experts and weights are given, gate comes first, scales are row-major."""
    arguments = (
        hidden_states,
        hidden_states_scale,
        topk_ids,
        topk_weights,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        local_expert_offset,
        output,
    )
    if isinstance(local_expert_offset, bool):
        raise ValueError(_unfit_argument(_ROUTED_ARGUMENTS, arguments))
    _call(_kernels.run_routed, _ROUTED_ARGUMENTS, arguments)


def run_routed_bf16(
    hidden_states,
    topk_ids,
    topk_weights,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    output,
):
    """As `run_routed`, for hidden_states [T, H] bf16, which a kernel quantises first."""
    arguments = (
        hidden_states,
        topk_ids,
        topk_weights,
        gemm1_weights,
        gemm1_weights_scale,
        gemm2_weights,
        gemm2_weights_scale,
        local_expert_offset,
        output,
    )
    names = [name for name in _ROUTED_ARGUMENTS if name != "hidden_states_scale"]
    if isinstance(local_expert_offset, bool):
        raise ValueError(_unfit_argument(names, arguments))
    _call(_kernels.run_routed_bf16, names, arguments)


def _call(function, names, arguments):
    try:
        function(*arguments, H_SPLIT)
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
            return f"{name}: is on {value.device}, want {first.device} as {names[0]}"
    return None
