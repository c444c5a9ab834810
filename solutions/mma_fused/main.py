"""mma_fused: the layer on mma.sync, for every NVIDIA GPU from Ampere to Blackwell.

Up to MOST_TOKENS tokens one CUDA kernel does it all, bound by reading the weights (one_launch/); above, Triton kernels
do, a stage each (many_tokens/). docs/mma_fused.md describes the design.
"""

import torch

from .build import load_kernels
from .kernels.check_routed_inputs import check_routed_inputs
from .many_tokens.layer import many_tokens, many_tokens_renorm, many_tokens_routed

MOST_TOKENS = 256  # of the one launch, as kMaxTokens in one_launch/sizes.cuh

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
    if _are_many(hidden_states):
        return many_tokens_routed(*arguments)
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
    if _are_many(hidden_states):
        x, *others = arguments
        check_routed_inputs((x, None, *others[:-2], output), local_expert_offset)
        return many_tokens_routed(*_quantised(x), *others)
    names = [name for name in _ROUTED_ARGUMENTS if name != "hidden_states_scale"]
    if isinstance(local_expert_offset, bool):
        raise ValueError(_unfit_argument(names, arguments))
    _call(_kernels.run_routed_bf16, names, arguments)


def _quantised(x):
    """Checked x [T, H] bf16 as FP8, and its scales [T, H / 128]. In CUDA: Triton has no FP8 before sm_89."""
    num_tokens, hidden = x.shape
    q = torch.empty(num_tokens, hidden, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_tokens, hidden // 128, dtype=torch.float32, device=x.device)
    _kernels.quantise(x, q, scales)
    return q, scales


def _are_many(of_tokens):
    return isinstance(of_tokens, torch.Tensor) and of_tokens.dim() > 0 and of_tokens.shape[0] > MOST_TOKENS


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
            return f"{name}: is on {value.device}, want {first.device} as {names[0]}"
    return None
