"""keywords: what is handed to FlashInfer's cutlass_fused_moe, by name, as positions differ between
versions.
"""

import torch

from ..common.host.problem import SWIGLU_ALPHA, SWIGLU_LIMIT, SWIGLU_UP_OFFSET

# Numbered from this rank's first expert, local ones are rank 0's, and others another rank's.
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
    """Raise ImportError unless a call with our keywords can fit a signature.

    parameters: of inspect.Signature. flags: names of the keywords that choose the kernels.
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
    """Return experts [T, top_k] int32 and weights [T, top_k] float32 as cutlass_fused_moe takes
    them.

    A slot whose expert is not local gets the first one of the other rank, and a weight of 0: what
    is there need not be a number.
    """
    local = topk_ids.to(torch.int64) - first_expert
    is_local = (local >= 0) & (local < num_local_experts)
    experts = torch.where(is_local, local, num_local_experts).to(torch.int32)
    return experts, torch.where(is_local, topk_weights, 0.0)


def activation_keywords(num_local_experts, device):
    """Return the keywords of the layer's activation: none for silu(gate) * up."""
    if not SWIGLU_LIMIT:
        return {}
    values = {
        "swiglu_alpha": SWIGLU_ALPHA,
        "swiglu_beta": SWIGLU_UP_OFFSET,
        "swiglu_limit": SWIGLU_LIMIT,
    }
    return {
        name: torch.full((num_local_experts,), value, dtype=torch.float32, device=device)
        for name, value in values.items()
    }


def keywords(experts, weights, activations, prepared, flags, output):
    """Return name -> value of one call.

    Args:
        experts, weights: as `local_routing` returns them.
        activations: [T, H] bfloat16.
        prepared: layout.Prepared.
        flags: keywords that choose the kernels.
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
