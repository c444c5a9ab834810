"""for_vllm_checks: refuse layers that this package is not compiled for.

for_vllm_fp8.py and for_vllm_mxfp4.py call it when vLLM builds a layer.
"""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation

from integrations.for_engines import NAME, Split, check_sizes
from solutions.common.host import problem

STEP_LIMIT = 7.0  # where vLLM's SWIGLUSTEP clamps, whatever the model's config says
ACTIVATION = MoEActivation.SILU
if problem.CLAMP_AFTER_SILU:
    ACTIVATION = MoEActivation.SWIGLUSTEP
elif problem.SWIGLU_UP_OFFSET:
    ACTIVATION = MoEActivation.SWIGLUOAI_UNINTERLEAVE


def check_layer(moe):
    """Raise ValueError unless this package computes a layer. moe: its FusedMoEConfig."""
    step_limit = STEP_LIMIT if moe.activation == MoEActivation.SWIGLUSTEP else 0.0
    check_number(moe, "swiglu_limit", step_limit, problem.SWIGLU_LIMIT)
    check_number(moe, "swiglu_alpha", 1.0, problem.SWIGLU_ALPHA)
    check_number(moe, "swiglu_beta", 0.0, problem.SWIGLU_UP_OFFSET)
    refuse(has_bias=moe.has_bias, is_lora_enabled=moe.is_lora_enabled)

    sizes = {
        "num_local_experts": moe.num_local_experts,
        "top_k": moe.experts_per_token,
        "hidden_size": moe.hidden_dim,
        "intermediate_size": moe.intermediate_size_per_partition,
    }
    split = Split(
        experts=moe.num_experts // moe.num_local_experts,
        width=moe.intermediate_size // moe.intermediate_size_per_partition,
    )
    check_sizes(sizes, get_current_vllm_config().model_config.model, split)


def check_number(moe, name, unset, want):
    """Raise ValueError unless a field of the layer's config is `want`.

    unset: the value that stands for a missing field, or None.
    """
    value = getattr(moe, name, None)
    got = unset if value is None else value
    if got != want:
        raise ValueError(
            f"{name}: got {got}, want {want}, for which {NAME} is compiled"
        )


def check_supported(experts, moe, weight_key, activation_key):
    """Raise ValueError with vLLM's reason if a class of experts does not support a layer.

    experts: a subclass of PackedExperts. moe: the layer's FusedMoEConfig. weight_key,
    activation_key: vLLM's QuantKeys of weights and tokens.
    """
    supported, reason = experts.is_supported_config(
        experts, moe, weight_key, activation_key, experts.activation_format()
    )
    if not supported:
        raise ValueError(f"{NAME}: {reason}")


def refuse(**options):
    """Raise ValueError if any of the options, by name, is set: this package supports none."""
    for name, value in options.items():
        if value:
            reason = f"{NAME} gives the weighted sum over experts, no more"
            raise ValueError(f"{name}: got {value!r}, want none: {reason}")
