"""mma_fused: the layer on mma.sync, for every NVIDIA GPU from Ampere to Blackwell.

Up to MOST_TOKENS tokens one CUDA kernel does it all, bound by reading the weights (one_launch/); above, Triton kernels
do, a stage each (many_tokens/). docs/mma_fused.md describes the design.
"""

from inspect import signature

import torch

from .build import load_kernels
from .common.host.check_routed_inputs import check_routed_inputs
from .many_tokens.layer import many_tokens, many_tokens_renorm, many_tokens_routed

MOST_TOKENS = 256  # of the one launch, as kMaxTokens in one_launch/sizes.cuh

_kernels = load_kernels()  # compiled on import, when the solution is built, not at its first call


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
    _layer(run, arguments, many_tokens, _kernels.run_layer)


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
    _layer(run_renorm, arguments, many_tokens_renorm, _kernels.run_renorm)


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
    _layer(run_routed, arguments, many_tokens_routed, _kernels.run_routed)


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
    _layer(run_routed_bf16, arguments, _many_tokens_routed_bf16, _kernels.run_routed_bf16)


def _many_tokens_routed_bf16(x, *others):
    """As `many_tokens_routed`, for x [T, H] bf16, quantised in CUDA: Triton has no FP8 before sm_89."""
    check_routed_inputs((x, None, *others[:-2], others[-1]), others[-2])
    num_tokens, hidden = x.shape
    q = torch.empty(num_tokens, hidden, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_tokens, hidden // 128, dtype=torch.float32, device=x.device)
    _kernels.quantise(x, q, scales)
    many_tokens_routed(q, scales, *others)


def _layer(entry, arguments, many, one_launch):
    """Launch the layer. arguments: of `entry`, in order, the first [T, ...]; many, one_launch: take them as well."""
    first = arguments[0]
    if isinstance(first, torch.Tensor) and first.dim() > 0 and first.shape[0] > MOST_TOKENS:
        return many(*arguments)
    if bool in map(type, arguments):  # which the binding takes for 1 or 0
        raise ValueError(_unfit_argument(entry, arguments))
    try:
        one_launch(*arguments, 0)  # a CTA on each SM
    except (TypeError, BufferError, RuntimeError) as error:
        if fault := _unfit_argument(entry, arguments):
            raise ValueError(fault) from error
        raise


def _unfit_argument(entry, arguments):
    """What is wrong with the first argument that the binding cannot convert; None if it can convert all."""
    names = list(signature(entry).parameters)
    of_tokens, first = names[0], arguments[0]
    for name, value in zip(names, arguments, strict=True):
        want = {"local_expert_offset": int, "routed_scaling_factor": (int, float)}.get(name, torch.Tensor)
        if not isinstance(value, want) or isinstance(value, bool):
            words = {int: "an int", torch.Tensor: "a tensor"}.get(want, "a number")
            return f"{name}: got {type(value).__name__}, want {words}"
        if want is torch.Tensor and value.device.type != "cuda":
            return f"{name}: is on {value.device}, want a CUDA device"
        if want is torch.Tensor and value.device != first.device:
            return f"{name}: is on {value.device}, want {first.device} as {of_tokens}"
    return None
