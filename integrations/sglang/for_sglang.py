"""for_sglang: SGLang's plugin, by which this package computes the experts of a model's MoE layers.

The model is one with FP8 experts, or, for a package of MXFP4 experts, DeepSeek-V4. A user names
`register` as an entry point of the group sglang.srt.plugins, and serves with --moe-runner-backend
deep_gemm: SGLang then calls the registered function in place of DeepGEMM's runner, with tokens in
bf16, the router's choice, and weights as they were loaded. integrations/README.md has the lines to
write, and what is not supported.
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

# the name of a runner for which SGLang itself registers no fused function
RUNNER = "deep_gemm"
WEIGHTS = {
    "use_fp8": True,
    "is_fp4_experts": MXFP4,
    "use_mxfp8": False,
    "block_shape": [128, 128],
}


def register():
    """Make SGLang call `experts` for layers whose runner is RUNNER, in this process.

    Raises:
        ImportError: this version of SGLang has no registry of fused functions.
        ValueError: another function is registered already.
    """
    from sglang.srt.layers.moe.moe_runner.base import register_fused_func

    # "none" means no all-to-all: tokens are gathered or replicated
    decorate = register_fused_func("none", RUNNER)
    decorate(experts)


def experts(dispatch_output, quant_info, runner_config):
    """Compute the sum over this rank's experts, or over its slices of all experts.

    It is called by SGLang as the fused function of a layer. SGLang adds up the ranks' sums.

    Args:
        dispatch_output: StandardDispatchOutput. Its topk_ids are numbers of this rank's experts,
            with -1 for those of others.
        quant_info: DeepGemmMoeQuantInfo.
        runner_config: MoeRunnerConfig.

    Returns:
        StandardCombineInput, with hidden_states [T, H] bfloat16.

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
    compute(
        x.contiguous(), routed.topk_ids.to(torch.int32), weights, quant_info, output
    )
    return StandardCombineInput(hidden_states=output)


@cache
def say_active():
    """Log once in a process that this package computes."""
    logging.getLogger(__name__).info(ACTIVE)


def activation():
    """Return field of MoeRunnerConfig -> value it must have for this package's activation.

    A tuple of values allows any of them.
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
    """Raise ValueError unless SGLang asks for what this package computes.

    Arguments are those of `experts`.
    Shapes and dtypes of the tensors are checked by run_bf16.
    """
    check_config(runner_config)

    weights = {key: getattr(quant_info, key, None) for key in WEIGHTS}
    if weights != WEIGHTS:
        raise ValueError(f"weights: got {weights}, want {WEIGHTS}")

    routed = dispatch_output.topk_output
    if not hasattr(routed, "topk_ids"):
        raise ValueError(
            f"topk_output: got {type(routed).__name__}, want ids and weights"
        )

    experts, gate_up, _ = quant_info.w13_weight.shape
    sizes = {
        "num_local_experts": experts,
        "top_k": routed.topk_ids.shape[1],
        "hidden_size": quant_info.w2_weight.shape[1],
        "intermediate_size": gate_up // 2,
    }
    if sizes != SIZES:
        refuse_sizes(sizes, runner_config)


def check_config(runner_config):
    """Raise ValueError unless SGLang's configuration of a layer is what this package computes."""
    wanted = activation()
    wanted |= {"apply_router_weight_on_input": False, "no_combine": False}
    for key, want in wanted.items():
        value = getattr(runner_config, key, None)
        allowed = want if isinstance(want, tuple) else (want,)
        if value not in allowed:
            raise ValueError(
                f"{key}: got {value!r}, want {want!r}, for which {NAME} is compiled"
            )


def refuse_sizes(sizes, runner_config):
    """Raise ValueError for a layer whose sizes are not SIZES, with advice."""
    from sglang.srt.runtime_context import get_parallel, get_server_args

    local_experts = sizes["num_local_experts"]
    split = Split(
        experts=(runner_config.num_experts or local_experts) // local_experts,
        width=get_parallel().moe_tp_size,
    )
    hint = "set --disable-shared-experts-fusion; or, "
    check_sizes(sizes, get_server_args().model_path, split, hint)
