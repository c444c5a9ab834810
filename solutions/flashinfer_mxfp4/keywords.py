"""keywords: the arguments for FlashInfer's cutlass_fused_moe, by name.

main.py calls these functions. Positions of arguments differ between versions, hence the names.
"""

import torch

from ..common.host.problem import SWIGLU_ALPHA, SWIGLU_LIMIT, SWIGLU_UP_OFFSET

# What FlashInfer is told: experts are numbered from this rank's first, so the local ones are those
# of rank 0; all others stand for the first expert of rank 1.
RANKS = 2
_ALWAYS = {
    "input",
    "token_selected_experts",
    "token_final_scales",
    "fc1_expert_weights",
    "fc2_expert_weights",
    "output_dtype",
    "quant_scales",
    "ep_size",
    "ep_rank",
    "output",
    "tune_max_num_tokens",
}
_ACTIVATION = {"swiglu_alpha", "swiglu_beta", "swiglu_limit"}
MOST_TOKENS_TUNED = 16384


def check_signature(parameters, flags):
    """Raise ImportError unless the installed function can be called with our arguments.

    parameters: name -> inspect.Parameter of it. flags: names of the arguments that choose kernels.
    """
    ours = _ALWAYS | _ACTIVATION | set(flags)
    required = {name for name, p in parameters.items() if p.default is p.empty}
    unknown = sorted(required - ours)
    if unknown:
        names = ", ".join(unknown)
        raise ImportError(f"FlashInfer's cutlass_fused_moe wants {names}, unknown here")

    gone = sorted(ours - parameters.keys())
    if gone:
        names = ", ".join(gone)
        raise ImportError(f"FlashInfer's cutlass_fused_moe does not take {names}")


def local_routing(topk_ids, topk_weights, first_expert, num_local_experts):
    """Return experts [T, top_k] int32 and weights [T, top_k] float32 for cutlass_fused_moe.

    A slot whose expert is not local gets the first expert of rank 1, and the weight 0, as the
    caller's weight may be NaN.
    """
    local = topk_ids.to(torch.int64) - first_expert
    is_local = (local >= 0) & (local < num_local_experts)
    experts = torch.where(is_local, local, num_local_experts).to(torch.int32)
    return experts, torch.where(is_local, topk_weights, 0.0)


def activation_keywords(num_local_experts, device):
    """Return name -> value of the arguments that set the activation, none for silu(gate) * up."""
    if not SWIGLU_LIMIT:
        return {}
    values = {
        "swiglu_alpha": SWIGLU_ALPHA,
        "swiglu_beta": SWIGLU_UP_OFFSET,
        "swiglu_limit": SWIGLU_LIMIT,
    }
    return {
        name: torch.full(
            (num_local_experts,), value, dtype=torch.float32, device=device
        )
        for name, value in values.items()
    }


def keywords(experts, weights, activations, prepared, flags, output):
    """Return name -> value of the arguments of a call.

    Args:
        experts, weights: as `local_routing` returns them.
        activations: [T, H] bfloat16.
        prepared: a `Prepared` of layout.py.
        flags: name -> value of the arguments that choose kernels (prepare.py).
        output: [T, H] bfloat16, written.
    """
    values = {
        "input": activations,
        "token_selected_experts": experts,
        "token_final_scales": weights,
        "fc1_expert_weights": prepared.gemm1,
        "fc2_expert_weights": prepared.gemm2,
        "output_dtype": torch.bfloat16,
        "quant_scales": prepared.quant_scales,
        "ep_size": RANKS,
        "ep_rank": 0,
        "output": output,
        "tune_max_num_tokens": MOST_TOKENS_TUNED,
    }
    return values | flags | activation_keywords(len(prepared.gemm1), activations.device)
