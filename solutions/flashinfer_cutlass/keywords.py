"""keywords: the arguments for FlashInfer's cutlass_fused_moe, by name.

main.py calls both functions. Positions of arguments differ between versions, hence the names.
Layouts need no conversion: in our definitions and in FlashInfer weights are [experts, rows,
columns], scales [experts, rows / 128, columns / 128], and of gemm1's rows the first half is `up`,
the second `gate`.
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
    """Raise ImportError unless the installed function can be called with the names in _ALWAYS.

    parameters: name -> inspect.Parameter of it.
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


def keywords(
    parameters, expert, weight, activations, num_experts, gemm1, gemm2, output
):
    """Return name -> value of the arguments of a call.

    Experts are numbered from this rank's first, so for FlashInfer this is rank 0, whatever
    local_expert_offset is. -1 is in no rank's range, so nothing is computed for it.

    Args:
        parameters: name -> inspect.Parameter of the installed function.
        expert: [T, top_k] int32, local expert number or -1.
        weight: [T, top_k] float32.
        activations: [T, H] bfloat16.
        num_experts: the experts of all ranks, a multiple of the local ones.
        gemm1, gemm2: (weights, scales) of this rank's experts, as in the definition.
        output: [T, H] bfloat16, written.
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
    # there is one tactic for block scales, so FlashInfer need not ask its tuner for both GEMMs
    if "profile_ids" in parameters:
        values["profile_ids"] = [-1, -1]
    return values
