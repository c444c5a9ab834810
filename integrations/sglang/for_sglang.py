"""for_sglang: this package as the experts of SGLang's FP8 models, or of its DeepSeek-V4 where this
package is of MXFP4 experts.

Name `register` as an entry point of the group sglang.srt.plugins and serve with
--moe-runner-backend deep_gemm: the function registered here is looked up before DeepGEMM's runner,
gets tokens in bf16 and the router's choice, and weights as they were loaded. integrations/README.md
has the lines, and what is not supported.
"""

# pyright: reportMissingImports=false
# SGLang is installed where a package is used, not here.

import logging
from functools import cache

from integrations import SIZES
from integrations.for_engines import ACTIVE, MXFP4, NAME, Split, check_sizes
from solutions.common.host import problem

if MXFP4:
    from integrations.sglang.for_sglang_mxfp4 import compute
else:
    from integrations.sglang.for_sglang_fp8 import compute

RUNNER = "deep_gemm"  # SGLang's own, which has no fused function of its own
WEIGHTS = {"use_fp8": True, "is_fp4_experts": MXFP4, "use_mxfp8": False, "block_shape": [128, 128]}


def register():
    """Compute the experts of FP8 models whose runner is RUNNER by this package, in this process.

    Raises:
        ImportError: this SGLang has no such registry.
        ValueError: another function is registered already.
    """
    from sglang.srt.layers.moe.moe_runner.base import register_fused_func

    # "none" means no all-to-all: tokens are gathered or replicated
    decorate = register_fused_func("none", RUNNER)
    decorate(experts)


def experts(dispatch_output, quant_info, runner_config):
    """Return the sum over this rank's experts, or over its slices of all experts, as
    StandardCombineInput: SGLang's fused function. SGLang adds up the ranks' sums.

    Args:
        dispatch_output: StandardDispatchOutput. Its topk_ids are numbers of this rank's experts,
            with -1 for those of others.
        quant_info: DeepGemmMoeQuantInfo.
        runner_config: MoeRunnerConfig.

    Raises:
        ValueError: the model or an argument is not what this package is compiled for.
    """
    import torch
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput

    check(dispatch_output, quant_info, runner_config)
    say_active()

    x = dispatch_output.hidden_states
    routed = dispatch_output.topk_output
    weights = routed.topk_weights.float()
    if runner_config.routed_scaling_factor not in (None, 1.0):
        weights = weights * runner_config.routed_scaling_factor

    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    compute(x.contiguous(), routed.topk_ids.to(torch.int32), weights, quant_info, output)
    return StandardCombineInput(hidden_states=output)


@cache
def say_active():
    """Log once in a process that this package computes."""
    logging.getLogger(__name__).info(ACTIVE)


def activation():
    """Return what SGLang's config has for the activation that this package is compiled for.

    A tuple of values means any of them.
    """
    limit = problem.SWIGLU_LIMIT or None
    fields = {"activation": "silu", "is_gated": True}
    fields |= {"gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None}

    if problem.SWIGLU_UP_OFFSET:
        fields["gemm1_alpha"] = problem.SWIGLU_ALPHA
        fields["gemm1_beta"] = (None, problem.SWIGLU_UP_OFFSET)  # newer than 0.5.17
        fields["gemm1_clamp_limit"] = limit
        fields["swiglu_limit"] = None
        fields["gate_up_interleaved"] = False
    elif problem.CLAMP_AFTER_SILU:
        fields["gemm1_clamp_limit"] = limit
        fields["swiglu_limit"] = None
    else:
        fields["swiglu_limit"] = limit
    return fields


def check(dispatch_output, quant_info, runner_config):
    """Raise ValueError where SGLang wants something else than this package computes.

    run_bf16 checks the tensors.
    """
    wanted = activation()
    wanted |= {"apply_router_weight_on_input": False, "no_combine": False}
    for key, want in wanted.items():
        value = getattr(runner_config, key, None)
        allowed = want if isinstance(want, tuple) else (want,)
        if value not in allowed:
            raise ValueError(f"{key}: got {value!r}, want {want!r}, for which {NAME} is compiled")

    weights = {key: getattr(quant_info, key, None) for key in WEIGHTS}
    if weights != WEIGHTS:
        raise ValueError(f"weights: got {weights}, want {WEIGHTS}")

    routed = dispatch_output.topk_output
    if not hasattr(routed, "topk_ids"):
        raise ValueError(f"topk_output: got {type(routed).__name__}, want ids and weights")

    experts, gate_up, _ = quant_info.w13_weight.shape
    sizes = {
        "num_local_experts": experts,
        "top_k": routed.topk_ids.shape[1],
        "hidden_size": quant_info.w2_weight.shape[1],
        "intermediate_size": gate_up // 2,
    }
    if sizes != SIZES:
        refuse_sizes(sizes, runner_config)


def refuse_sizes(sizes, runner_config):
    """Raise ValueError for a layer of other sizes than SIZES."""
    from sglang.srt.runtime_context import get_parallel, get_server_args

    local_experts = sizes["num_local_experts"]
    split = Split(
        experts=(runner_config.num_experts or local_experts) // local_experts,
        width=get_parallel().moe_tp_size,
    )
    hint = "set --disable-shared-experts-fusion; or, "
    check_sizes(sizes, get_server_args().model_path, split, hint)
