"""keywords: what is handed to FlashInfer's cutlass_fused_moe.

All go by name, since positions differ between versions. Layouts need no conversion: weights are
[experts, rows, columns], scales [experts, rows / 128, columns / 128], and gemm1's first half of
rows is `up`, its second half `gate`, here and there.
"""

import torch

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
    "use_deepseek_fp8_block_scale",
}


def check_signature(parameters):
    """Raise ImportError unless a call with our keywords can fit a signature.

    parameters: of inspect.Signature.
    """
    required = {name for name, p in parameters.items() if p.default is p.empty}
    unknown = sorted(required - _ALWAYS)
    if unknown:
        names = ", ".join(unknown)
        raise ImportError(f"FlashInfer's cutlass_fused_moe wants {names}, unknown here")

    gone = sorted(_ALWAYS - parameters.keys())
    if gone:
        names = ", ".join(gone)
        raise ImportError(f"FlashInfer's cutlass_fused_moe no longer takes {names}")


def keywords(parameters, expert, weight, activations, num_experts, gemm1, gemm2, output):
    """Return the keywords of one call.

    Experts are numbered from this rank's first, which makes this rank 0 for any
    local_expert_offset; -1 lies outside of every rank's range and so costs nothing.

    Args:
        parameters: name -> inspect.Parameter of the installed function.
        expert: [T, top_k] int32, local expert number or -1.
        weight: [T, top_k] float32.
        activations: [T, H] bfloat16.
        num_experts: of all ranks, a multiple of the local ones.
        gemm1, gemm2: (weights, scales) of this rank's experts, as in the definition.
        output: [T, H] bfloat16, written.

    Returns:
        name -> value.
    """
    values = {
        "input": activations,
        "token_selected_experts": expert,
        "token_final_scales": weight,
        "fc1_expert_weights": gemm1[0],
        "fc2_expert_weights": gemm2[0],
        "output_dtype": torch.bfloat16,
        "quant_scales": [gemm1[1], gemm2[1]],
        "ep_size": num_experts // gemm1[0].shape[0],
        "ep_rank": 0,
        "output": output,
        "use_deepseek_fp8_block_scale": True,
    }
    # block scales have one tactic, so the tuner need not be asked twice a call
    if "profile_ids" in parameters:
        values["profile_ids"] = [-1, -1]
    return values
