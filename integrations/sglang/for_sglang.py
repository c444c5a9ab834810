"""This package as the experts of SGLang's FP8 models: called by the classes of 0.5.17 and 0.5.23,
**no server run**.

Name `register` as an entry point of the group sglang.srt.plugins and serve with
--moe-runner-backend deep_gemm: the function registered here is looked up before DeepGEMM's runner,
gets tokens in bf16 and the router's choice, and weights as they were loaded. integrations/README.md has
the lines, and what is not supported.
"""

# pyright: reportMissingImports=false
# SGLang is installed where a package is used, not here.

import logging
from functools import cache

from integrations import SIZES, run_bf16
from integrations.for_engines import ACTIVE, NAME, check_sizes
from solutions.common.host import problem

RUNNER = "deep_gemm"  # SGLang's own, which has no fused function of its own
WEIGHTS = {"use_fp8": True, "is_fp4_experts": False, "use_mxfp8": False, "block_shape": [128, 128]}


def register():
    """Compute the experts of FP8 models whose runner is RUNNER by this package, in this process.

    Raises:
        ImportError: this SGLang has no such registry.
        ValueError: another function is registered already.
    """
    from sglang.srt.layers.moe.moe_runner.base import register_fused_func

    register_fused_func("none", RUNNER)(
        experts
    )  # none: no all-to-all, tokens are gathered or replicated


def experts(dispatch_output, quant_info, runner_config):
    """SGLang's fused function: StandardDispatchOutput, DeepGemmMoeQuantInfo, MoeRunnerConfig ->
    StandardCombineInput.

    topk_ids are numbers of this rank's experts, with -1 for those of others.

    Raises:
        ValueError: the model or an argument is not what this package is compiled for.
    """
    import torch
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput

    check(dispatch_output, quant_info, runner_config)
    say_active()
    x, routed = dispatch_output.hidden_states, dispatch_output.topk_output
    factor = runner_config.routed_scaling_factor
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    run_bf16(
        x.contiguous(),
        routed.topk_ids.to(torch.int32),
        routed.topk_weights.float()
        if factor in (None, 1.0)
        else routed.topk_weights.float() * factor,
        quant_info.w13_weight,
        quant_info.w13_scale,
        quant_info.w2_weight,
        quant_info.w2_scale,
        0,
        output,
    )
    return StandardCombineInput(hidden_states=output)


@cache
def say_active():
    """Log once in a process that this package computes."""
    logging.getLogger(__name__).info(ACTIVE)


def activation():
    """What SGLang's config has for the activation that this package is compiled for; a tuple: one
    of these.
    """
    limit = problem.SWIGLU_LIMIT or None
    found = {
        "activation": "silu",
        "is_gated": True,
        "gemm1_alpha": None,
        "gemm1_beta": None,
        "gemm1_clamp_limit": None,
    }
    if problem.SWIGLU_UP_OFFSET:
        found |= {
            "gemm1_alpha": problem.SWIGLU_ALPHA,
            "gemm1_beta": (None, problem.SWIGLU_UP_OFFSET),
        }
        return found | {
            "gemm1_clamp_limit": limit,
            "swiglu_limit": None,
            "gate_up_interleaved": False,
        }
    if problem.CLAMP_AFTER_SILU:
        return found | {"gemm1_clamp_limit": limit, "swiglu_limit": None}
    return found | {"swiglu_limit": limit}


def check(dispatch_output, quant_info, runner_config):
    """Raise ValueError where SGLang wants something else than this package computes. run_bf16
    checks the tensors.
    """
    wanted = activation() | {"apply_router_weight_on_input": False, "no_combine": False}
    for key, want in wanted.items():
        among = want if isinstance(want, tuple) else (want,)
        if (
            got := getattr(runner_config, key, None)
        ) not in among:  # gemm1_beta is newer than 0.5.17
            raise ValueError(f"{key}: got {got!r}, want {want!r}, for which {NAME} is compiled")
    if (got := {key: getattr(quant_info, key, None) for key in WEIGHTS}) != WEIGHTS:
        raise ValueError(f"weights: got {got}, want {WEIGHTS}")
    if not hasattr(dispatch_output.topk_output, "topk_ids"):
        raise ValueError(
            f"topk_output: got {type(dispatch_output.topk_output).__name__}, want ids and weights"
        )
    local, hidden, inter = quant_info.w2_weight.shape
    top_k = dispatch_output.topk_output.topk_ids.shape[1]
    got = {
        "num_local_experts": local,
        "top_k": top_k,
        "hidden_size": hidden,
        "intermediate_size": inter,
    }
    if got != SIZES:
        from sglang.srt.runtime_context import get_server_args

        hint = "set --disable-shared-experts-fusion, and --ep-size as large as --tp-size; or, "
        check_sizes(
            got, get_server_args().model_path, (runner_config.num_experts or local) // local, hint
        )
