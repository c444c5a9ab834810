"""for_vllm_checks: what of a layer of vLLM's is not what this package is compiled for."""

# pyright: reportMissingImports=false
# vLLM is installed where a package is used, not here.

from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation

from integrations.for_engines import NAME, Split, check_sizes
from solutions.common.host import problem

STEP_LIMIT = 7.0  # vLLM's SWIGLUSTEP has no other
ACTIVATION = MoEActivation.SILU
if problem.CLAMP_AFTER_SILU:
    ACTIVATION = MoEActivation.SWIGLUSTEP
elif problem.SWIGLU_UP_OFFSET:
    ACTIVATION = MoEActivation.SWIGLUOAI_UNINTERLEAVE


def check_layer(moe):
    """Raise ValueError where a layer is not this package's. moe: FusedMoEConfig."""
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
    """Raise ValueError where a number of the layer's config, `unset` if it has none, is another."""
    value = getattr(moe, name, None)
    got = unset if value is None else value
    if got != want:
        raise ValueError(f"{name}: got {got}, want {want}, for which {NAME} is compiled")


def check_supported(experts, moe, weight_key, activation_key):
    """Raise ValueError with vLLM's reason where a class of experts cannot compute a layer.

    The keys are vLLM's, of how weights and tokens are quantised.
    """
    supported, reason = experts.is_supported_config(
        experts, moe, weight_key, activation_key, experts.activation_format()
    )
    if not supported:
        raise ValueError(f"{NAME}: {reason}")


def refuse(**options):
    """Raise ValueError for an option that asks for more than this package does."""
    for name, value in options.items():
        if value:
            reason = f"{NAME} gives the weighted sum over experts, no more"
            raise ValueError(f"{name}: got {value!r}, want none: {reason}")
